"""A request takes no longer than it may: waiting, running, streamed or not."""

import asyncio

import httpx2 as httpx
import pytest

from mlx_server.api.serving import ServingState
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, WAIT_S, chat, events, text_of

SOON = {"x-request-timeout": "0.1"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_one_that_waits_too_long_is_a_503(
    client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool, n: int
) -> None:
    engine.stall_after = 0
    response = await client.post(URL, json=chat(stream=stream, n=n), headers=SOON)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert "0.1 s" in response.json()["error"]["message"]
    assert not engine.live
    assert len(engine.closed_early) == n


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_runs_too_long_is_ended(client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool) -> None:
    engine.stall_after = 3
    response = await client.post(URL, json=chat(stream=stream), headers=SOON)
    assert not engine.live
    if stream:
        *chunks, last = events(response.text)
        assert text_of(chunks)
        assert last["error"]["code"] == "deadline_exceeded"
    else:
        assert (response.status_code, response.json()["error"]["code"]) == (503, "deadline_exceeded")


async def test_the_header_only_lowers_the_setting(
    client: httpx.AsyncClient, serving: ServingState, engine: ScriptedEngine
) -> None:
    serving.settings = serving.settings.model_copy(update={"request_timeout_s": 0.1})
    engine.stall_after = 0
    async with asyncio.timeout(WAIT_S):
        response = await client.post(URL, json=chat(), headers={"x-request-timeout": "1e9"})
    assert response.json()["error"]["code"] == "deadline_exceeded"


async def test_one_that_is_quick_enough_is_answered(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json=chat(), headers={"x-request-timeout": "9.5"})
    assert response.status_code == 200


@pytest.mark.parametrize("given", ["0", "-1", "nan", "soon", "", "0x10"])
async def test_what_is_no_time_is_a_400(client: httpx.AsyncClient, engine: ScriptedEngine, given: str) -> None:
    response = await client.post(URL, json=chat(), headers={"x-request-timeout": given})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "x-request-timeout")
    assert "seconds above 0" in error["message"]
    assert not engine.requests
