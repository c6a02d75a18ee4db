"""API keys at the door: who comes in, how important it is, how much it may ask for."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from mlx_server.api.access import check_exposure
from mlx_server.api.serving import ServingState
from mlx_server.core.errors import SettingsError
from mlx_server.core.messages import Priority
from mlx_server.core.settings import Settings
from mlx_server.daemon.app import create_app
from mlx_server.daemon.server import serve
from mlx_server.services.keys import add_key, revoke_key
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, WAIT_S, chat, events

MODELS = "/v1/models"


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def key(keys_file: Path) -> str:
    return add_key(keys_file, "one")[1]


@pytest.fixture
def serving(serving: ServingState, keys_file: Path, key: str) -> ServingState:
    serving.settings = serving.settings.model_copy(update={"keys_file": keys_file})
    return serving


def spoil(keys_file: Path, fault: str) -> None:
    match fault:
        case "no keys":
            revoke_key(keys_file, "one")
        case "damaged":
            keys_file.write_text("{}")
        case "readable by others":
            keys_file.chmod(0o644)
        case "missing":
            keys_file.unlink()


def refusal(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error: dict[str, Any] = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    return error


@pytest.mark.parametrize(
    "form", ["Authorization: Bearer {}", "authorization: bearer  {} ", "X-Api-Key: {}", "x-api-key: {}"]
)
async def test_a_key_opens_every_endpoint(client: httpx.AsyncClient, key: str, form: str) -> None:
    name, _, value = form.format(key).partition(": ")
    headers = {name: value}
    assert (await client.post(URL, json=chat(), headers=headers)).status_code == 200
    assert (await client.get(MODELS, headers=headers)).status_code == 200


async def test_a_missing_key_is_a_401_that_says_what_to_send(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    for response in (
        await client.get(MODELS),
        await client.post(URL, json=chat()),
        await client.post(URL, json=chat(stream=True)),
        await client.post(URL, content=b"no json"),
        await client.options(URL),
        await client.get("/nothing"),
        await client.get("/openapi.json"),
        await client.get("/health/"),
    ):
        assert "Authorization: Bearer" in refusal(response)["message"]
    assert not engine.requests


async def test_a_wrong_key_is_a_401(client: httpx.AsyncClient, key: str) -> None:
    wrong = [key[:-1], key + "x", key.upper(), "sk-dummy", "mlxs-00000000-" + key[14:], key[:14] + "A" * 43, "\xe9"]
    for text in wrong:
        for headers in (bearer(text), {"x-api-key": text}):
            raw = {name: value.encode("latin-1") for name, value in headers.items()}
            assert refusal(await client.get(MODELS, headers=raw))["message"] == "the API key is not valid"
    for headers in (
        {"authorization": key}, {"authorization": f"Basic {key}"}, {"authorization": "Bearer"},
        {"authorization": "Bearer "}, {"x-api-key": ""}, {"api-key": key}, {"cookie": f"key={key}"},
    ):  # fmt: skip
        refusal(await client.get(MODELS, headers=headers))
    refusal(await client.get(f"{MODELS}?api_key={key}&key={key}"))


async def test_clients_that_send_two_keys_need_one_that_is_valid(client: httpx.AsyncClient, key: str) -> None:
    for headers in (bearer("dummy") | {"x-api-key": key}, bearer(key) | {"x-api-key": "dummy"}):
        assert (await client.get(MODELS, headers=headers)).status_code == 200


async def test_a_revoked_key_is_refused_on_the_next_request(
    client: httpx.AsyncClient, keys_file: Path, key: str
) -> None:
    other = add_key(keys_file, "two")[1]
    assert (await client.get(MODELS, headers=bearer(key))).status_code == 200
    revoke_key(keys_file, "one")
    refusal(await client.get(MODELS, headers=bearer(key)))
    assert (await client.get(MODELS, headers=bearer(other))).status_code == 200
    revoke_key(keys_file, "two")
    refusal(await client.get(MODELS, headers=bearer(other)))
    refusal(await client.get(MODELS))


async def test_a_key_file_that_is_damaged_while_running_refuses_everybody(
    client: httpx.AsyncClient, keys_file: Path, key: str
) -> None:
    assert (await client.get(MODELS, headers=bearer(key))).status_code == 200
    spoil(keys_file, "damaged")
    refusal(await client.get(MODELS, headers=bearer(key)))
    refusal(await client.get(MODELS))
    assert (await client.get("/ready")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_supervisors_need_no_key_and_see_a_status_only(client: httpx.AsyncClient, key: str, path: str) -> None:
    for headers in ({}, bearer("wrong")):
        response = await client.get(path, headers=headers)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
    if path == "/health":
        assert (await client.get(path, headers=bearer(key))).json()["stats"]["running"] == 0


class TestWithoutKeys:
    @pytest.fixture
    def key(self, keys_file: Path) -> str:
        text = add_key(keys_file, "one")[1]
        revoke_key(keys_file, "one")
        return text

    @pytest.mark.parametrize("headers", [{}, {"x-api-key": "x"}, {"authorization": "Bearer sk-dummy"}])
    async def test_anything_is_taken_for_a_key(
        self, client: httpx.AsyncClient, engine: ScriptedEngine, headers: dict[str, str]
    ) -> None:
        assert (await client.post(URL, json=chat(), headers=headers)).status_code == 200
        (request,) = engine.requests
        assert (request.priority, request.tenant, request.cache_salt) == (Priority.NORMAL, "", "")

    async def test_the_first_key_closes_the_door(self, client: httpx.AsyncClient, keys_file: Path) -> None:
        assert (await client.get(MODELS)).status_code == 200
        text = add_key(keys_file, "first")[1]
        refusal(await client.get(MODELS))
        assert (await client.get(MODELS, headers=bearer(text))).status_code == 200

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.20", "studio.local", ""])
    async def test_other_machines_are_never_let_in(self, serving: ServingState, keys_file: Path, host: str) -> None:
        """Neither at the start, nor when the last key is revoked later."""
        serving.settings = serving.settings.model_copy(update={"host": host})
        with pytest.raises(SettingsError, match=r"host = .*mlx-serve keys add NAME"):
            check_exposure(serving.settings)
        transport = httpx.ASGITransport(create_app(serving))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            refusal(await client.get(MODELS))
            assert (await client.get("/health")).json() == {"status": "ok"}
            text = add_key(keys_file, "new")[1]
            assert (await client.get(MODELS, headers=bearer(text))).status_code == 200
            check_exposure(serving.settings)
            revoke_key(keys_file, "new")
            refusal(await client.get(MODELS, headers=bearer(text)))


@pytest.mark.parametrize("fault", ["no keys", "damaged", "readable by others", "missing"])
async def test_the_daemon_does_not_start(folder: Path, keys_file: Path, key: str, fault: str) -> None:
    spoil(keys_file, fault)
    host = "0.0.0.0" if fault == "no keys" else "127.0.0.1"
    settings = Settings(model=str(folder), port=0, host=host, keys_file=keys_file)
    listening: list[str] = []
    with pytest.raises(SettingsError, match="keys add" if fault in ("no keys", "missing") else "keys_file = "):
        await serve(settings, lambda *_: ScriptedEngine(), on_listening=listening.append)
    assert not listening


async def test_the_log_names_the_key_and_no_secret(
    client: httpx.AsyncClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await client.post(URL, json=chat(), headers=bearer(key))
        await client.get(MODELS, headers=bearer(key[:-1] + "!"))
    lines = [record.getMessage() for record in caplog.records if "request=req-" in record.getMessage()]
    assert [f"key={key[5:13]}" in line for line in lines] == [True, False]
    assert key[14:-1] not in "".join(str(record.__dict__) for record in caplog.records)


TIERS: list[tuple[str, Any, Priority]] = [
    ("high", None, Priority.HIGH), ("high", "high", Priority.HIGH), ("high", "normal", Priority.NORMAL),
    ("high", 0, Priority.NORMAL), ("high", "low", Priority.LOW), ("high", -5, Priority.HIGH),
    ("normal", None, Priority.NORMAL), ("normal", "high", Priority.NORMAL), ("normal", -5, Priority.NORMAL),
    ("normal", 1, Priority.LOW), ("low", None, Priority.LOW), ("low", "high", Priority.LOW), ("low", 0, Priority.LOW),
]  # fmt: skip


@pytest.mark.parametrize(("tier", "asked", "priority"), TIERS)
async def test_a_client_may_only_lower_the_priority_of_its_key(
    client: httpx.AsyncClient, engine: ScriptedEngine, keys_file: Path, tier: Any, asked: Any, priority: Priority
) -> None:
    made, text = add_key(keys_file, "tiered", tier)
    response = await client.post(URL, json=chat(priority=asked, n=2), headers=bearer(text))
    assert response.status_code == 200
    assert [request.priority for request in engine.requests] == [priority] * 2
    assert {(request.tenant, request.cache_salt) for request in engine.requests} == {(made.id, made.id)}


class TestLimits:
    @pytest.fixture
    def two(self, keys_file: Path) -> str:
        return add_key(keys_file, "two-at-a-time", max_concurrent=2)[1]

    @pytest.fixture
    def engine(self, engine: ScriptedEngine) -> ScriptedEngine:
        engine.stall_after = 1
        return engine

    @staticmethod
    def limited(response: httpx.Response, retry_after: range) -> None:
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) in retry_after
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")

    @staticmethod
    async def started(
        client: httpx.AsyncClient, engine: ScriptedEngine, text: str, stream: bool
    ) -> asyncio.Future[httpx.Response]:
        """A request that has come to its stall."""
        engine.stalled.clear()
        request = asyncio.ensure_future(client.post(URL, json=chat(stream=stream), headers=bearer(text)))
        await engine.stalled.wait()
        return request

    @pytest.mark.parametrize("stream", [False, True])
    async def test_at_the_same_time(
        self, client: httpx.AsyncClient, engine: ScriptedEngine, two: str, key: str, stream: bool
    ) -> None:
        async with asyncio.timeout(WAIT_S):
            running = [await self.started(client, engine, two, stream) for _ in range(2)]
            self.limited(await client.post(URL, json=chat(), headers=bearer(two)), range(1, 2))
            assert (await client.get(MODELS, headers=bearer(two))).status_code == 200
            other = await self.started(client, engine, key, stream)
            engine.resume.set()
            for task in (*running, other):
                assert (await task).status_code == 200
            assert (await client.post(URL, json=chat(), headers=bearer(two))).status_code == 200

    async def test_failed_and_abandoned_requests_leave_their_place(
        self, app: FastAPI, client: httpx.AsyncClient, engine: ScriptedEngine, keys_file: Path
    ) -> None:
        text = add_key(keys_file, "one-at-a-time", max_concurrent=1)[1]
        for _ in range(3):
            assert (await client.post(URL, json={}, headers=bearer(text))).status_code == 400
        call = Abandoned(app, text)
        async with asyncio.timeout(WAIT_S):
            await engine.stalled.wait()
            self.limited(await client.post(URL, json=chat(), headers=bearer(text)), range(1, 2))
            call.gone.set()
            await call.task
            engine.resume.set()
            assert (await client.post(URL, json=chat(), headers=bearer(text))).status_code == 200

    async def test_a_minute(self, client: httpx.AsyncClient, engine: ScriptedEngine, keys_file: Path) -> None:
        engine.resume.set()
        text = add_key(keys_file, "three-a-minute", per_minute=3)[1]
        for _ in range(3):
            assert (await client.post(URL, json=chat(), headers=bearer(text))).status_code == 200
        self.limited(await client.post(URL, json=chat(), headers=bearer(text)), range(15, 21))
        assert (await client.get(MODELS, headers=bearer(text))).status_code == 200


class Abandoned:
    """A chat whose client goes away when `gone` is set."""

    def __init__(self, app: FastAPI, text: str) -> None:
        self.gone = asyncio.Event()
        self._body: bytes | None = b'{"messages": [{"role": "user", "content": "hi"}]}'
        headers = [(b"host", b"localhost"), (b"x-api-key", text.encode()), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": URL, "query_string": b"",
            "root_path": "", "headers": headers,
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None: ...


@pytest.fixture
async def open_client(engine: ScriptedEngine, serving: ServingState) -> AsyncIterator[httpx.AsyncClient]:
    """Of a daemon without keys."""
    serving.settings = Settings(model="org/small")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(serving)), base_url="http://localhost"
    ) as client:
        yield client


@pytest.mark.parametrize("name", ["../../../../etc/{}", "/etc/{}", "..%2f..%2fetc%2f{}", "file:///etc/{}", "~/{}"])
async def test_files_that_exist_and_files_that_do_not_answer_alike_when_named_as_models(
    open_client: httpx.AsyncClient, name: str
) -> None:
    answers = set()
    for file in ("passwd", "nopass"):
        model = name.format(file)
        named = await open_client.post(URL, json=chat() | {"model": model})
        asked = await open_client.get("/v1/models/" + model)
        assert (named.status_code, asked.status_code) == (404, 404)
        answers.add(named.text.replace(model, "") + asked.text.replace("passwd", "").replace("nopass", ""))
    assert len(answers) == 1


async def test_the_prompts_of_one_key_do_not_speed_up_those_of_another(
    client: httpx.AsyncClient, engine: ScriptedEngine, keys_file: Path, key: str
) -> None:
    """Blocks of the prefix cache are shared under the same salt only."""
    other = add_key(keys_file, "other")[1]
    for text in (key, other, key):
        assert events((await client.post(URL, json=chat(stream=True), headers=bearer(text))).text)[-1] == "DONE"
    first, second, third = (request.cache_salt for request in engine.requests)
    assert first == third != second
