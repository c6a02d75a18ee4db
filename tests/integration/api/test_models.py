"""GET /v1/models."""

import httpx2 as httpx
import pytest


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
async def test_the_list_has_the_served_model(client: httpx.AsyncClient, path: str) -> None:
    listing = (await client.get(path)).json()
    assert listing["object"] == "list"
    (model,) = listing["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("org/small", "model", 512)


async def test_a_name_with_a_slash_is_found(client: httpx.AsyncClient) -> None:
    for name in ("org/small", "org%2Fsmall", "scripted/model", "default"):
        response = await client.get(f"/v1/models/{name}")
        assert (response.status_code, response.json()["id"]) == (200, "org/small")


async def test_an_unknown_name_is_a_404(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models/gpt-4o")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
