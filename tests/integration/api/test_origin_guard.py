"""Pages of other sites: none may use the daemon unless the settings say so."""

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from mlx_server.api.serving import ServingState
from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import Settings, load_settings
from mlx_server.daemon.app import create_app
from mlx_server.services.keys import add_key
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, chat, events, text_of

PAGE = "http://localhost:3000"
FOREIGN = [
    "http://evil.example", "null", "NULL", "file://", "chrome-extension://abcdef", "app://obsidian.md", "*", "",
    "http://localhost:3000", "http://localhost:8642", "https://localhost", "http://localhost.evil.example",
    "http://localhost@evil.example", "http://localhost/", "http://localhost http://evil.example", "localhost",
]  # fmt: skip
"""What a page at http://localhost, port 80, is not."""


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
        "access-control-request-private-network": "true",
    }


def grants(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.lower().startswith("access-control-")}


@contextmanager
def no_work(engine: ScriptedEngine) -> Iterator[None]:
    before = len(engine.requests)
    yield
    assert len(engine.requests) == before


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_foreign_or_null_origin_is_refused_and_gets_no_grant(
    client: httpx.AsyncClient, engine: ScriptedEngine, origin: str
) -> None:
    with no_work(engine):
        for response in (
            await client.get("/health", headers={"origin": origin}),
            await client.get("/v1/models", headers={"origin": origin}),
            await client.post(URL, json=chat(), headers={"origin": origin}),
            await client.options(URL, headers=preflight(origin)),
        ):
            assert response.status_code == 403
            assert response.json()["error"]["code"] == "foreign_origin"
            assert "--cors-origins" in response.json()["error"]["message"]
            assert not grants(response)


async def test_two_origins_are_none(client: httpx.AsyncClient) -> None:
    headers = [("origin", "http://localhost"), ("origin", "http://evil.example")]
    assert (await client.get("/v1/models", headers=headers)).status_code == 403


async def test_a_page_of_another_site_cannot_post_text_without_asking(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    """What a form can send needs no preflight; the browser puts the origin on it, and the type is refused by itself."""
    with no_work(engine):
        for origin, status in (({"origin": "http://evil.example"}, 403), ({}, 415)):
            headers = {"content-type": "text/plain", **origin}
            assert (await client.post(URL, content=b"{}", headers=headers)).status_code == status


@pytest.mark.parametrize("mode", ["cors", "no-cors", "navigate"])
async def test_a_node_client_sends_no_origin_and_is_served(client: httpx.AsyncClient, mode: str) -> None:
    """`fetch` of Node sends `sec-fetch-mode` and nothing else of a browser's."""
    headers = {"sec-fetch-mode": mode, "accept-language": "*", "user-agent": "node"}
    response = await client.post(URL, json=chat(), headers=headers)
    assert response.status_code == 200
    assert not grants(response)


@pytest.mark.parametrize("host", ["localhost", "localhost:8642", "127.0.0.1:8642", "[::1]:8642"])
async def test_the_daemons_own_pages_are_served(client: httpx.AsyncClient, host: str) -> None:
    response = await client.post(URL, json=chat(), headers={"host": host, "origin": f"http://{host}"})
    assert response.status_code == 200
    assert not grants(response)


async def test_a_rebound_page_is_not_one_of_our_own(client: httpx.AsyncClient) -> None:
    headers = {"host": "evil.example:8642", "origin": "http://evil.example:8642"}
    response = await client.post(URL, json=chat(), headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "foreign_host")


class TestConfigured:
    """`--cors-origins http://localhost:3000,app://obsidian.md`"""

    @pytest.fixture
    def serving(self, serving: ServingState, tmp_path: Path) -> ServingState:
        fields = {"model": "org/small", "cors_origins": f"{PAGE}, app://obsidian.md"}
        serving.settings = Settings(**fields)  # type: ignore[arg-type]
        return serving

    @pytest.mark.parametrize("origin", [PAGE, "app://obsidian.md"])
    async def test_a_page_that_is_allowed_is_answered(self, client: httpx.AsyncClient, origin: str) -> None:
        asked = await client.options(URL, headers=preflight(origin))
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == origin
        assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
        assert asked.headers["access-control-allow-private-network"] == "true"
        answer = await client.post(URL, json=chat(stream=True), headers={"origin": origin})
        assert text_of(events(answer.text)) == "Hello there, 😀 world."
        assert answer.headers["access-control-allow-origin"] == origin
        assert "origin" in answer.headers["vary"].lower()
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        for response in (asked, answer):
            assert "access-control-allow-credentials" not in response.headers

    async def test_a_refusal_can_be_read_by_the_page(self, client: httpx.AsyncClient) -> None:
        response = await client.post(URL, json={}, headers={"origin": PAGE})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (400, PAGE)

    async def test_who_sends_no_origin_gets_no_grant(self, client: httpx.AsyncClient) -> None:
        assert not grants(await client.get("/v1/models"))

    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "null", f"{PAGE}.evil.example", PAGE + "1", "https" + PAGE[4:]]
    )
    async def test_others_stay_refused(self, client: httpx.AsyncClient, origin: str) -> None:
        for response in (
            await client.options(URL, headers=preflight(origin)),
            await client.get("/v1/models", headers={"origin": origin}),
        ):
            assert response.status_code == 403
            assert not grants(response)

    async def test_a_preflight_needs_no_key_and_the_request_behind_it_does(
        self, serving: ServingState, tmp_path: Path
    ) -> None:
        path = tmp_path / "keys.json"
        _, text = add_key(path, "page")
        serving.settings = serving.settings.model_copy(update={"keys_file": path})
        async with AsyncExitStack() as stack:
            transport = httpx.ASGITransport(create_app(serving))
            client = await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://localhost")
            )
            assert (await client.options(URL, headers=preflight(PAGE))).status_code == 200
            refused = await client.post(URL, json=chat(), headers={"origin": PAGE})
            assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
            headers = {"origin": PAGE, "authorization": f"Bearer {text}"}
            assert (await client.post(URL, json=chat(), headers=headers)).status_code == 200


def test_every_page_is_not_an_origin() -> None:
    with pytest.raises(SettingsError, match=r"cors_origins .*every web page"):
        load_settings(cors_origins="http://localhost:3000,*")


@pytest.mark.parametrize(
    "origin", ["null", "localhost:3000", "http://", "http://x/", "http://x?y", "http://*.x", "x y"]
)
def test_what_is_no_origin_stops_the_start(origin: str) -> None:
    with pytest.raises(SettingsError, match=r"cors_origins .*must be like http://localhost:3000"):
        load_settings(cors_origins=origin)
