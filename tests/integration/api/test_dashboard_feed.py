"""The dashboard's page, feed and cancelling over HTTP: what they answer, and to whom."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from mlx_server.api import dashboard_files
from mlx_server.api.access import Caller
from mlx_server.api.errors import OverloadedError
from mlx_server.api.live import feed as feed_module
from mlx_server.api.live.feed import Feed
from mlx_server.api.serving import ServingState
from mlx_server.services.keys import add_key
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, WAIT_S, chat
from tests.integration.api.live import Running, running

EVENTS = "/dashboard/events"
Headers = dict[str, str]


@pytest.fixture
async def daemon(folder: Path, engine: ScriptedEngine) -> AsyncIterator[Running]:
    async with running(folder, engine) as live:
        await live.ready.wait()
        yield live


@asynccontextmanager
async def watching(client: httpx.AsyncClient, headers: Headers | None = None) -> AsyncIterator[AsyncIterator[Any]]:
    """(name, value) of the events, as they come."""

    async def parsed(lines: AsyncIterator[str]) -> AsyncIterator[Any]:
        name = ""
        async for line in lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))

    async with client.stream("GET", EVENTS, headers=headers or {}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield parsed(response.aiter_lines())


async def facts_with(events: AsyncIterator[Any], request_count: int) -> Any:
    async for name, value in events:
        if name == "facts" and len(value["requests"]) == request_count:
            return value
    raise AssertionError("the feed ended")


def bearer(key: str) -> Headers:
    return {"authorization": f"Bearer {key}"}


async def test_the_page_has_a_strict_policy_and_what_it_names_exists(client: httpx.AsyncClient) -> None:
    for path in dashboard_files.PAGE_PATHS - {"/dashboard/"}:
        response = await client.get(path)
        assert response.status_code == 200, path
        assert response.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert response.headers["x-content-type-options"] == "nosniff"
    for path in ("/dashboard/nothing.js", "/dashboard/..%2faccess.py", "/dashboard/%2e%2e/app.py"):
        assert (await client.get(path)).status_code == 404


def test_every_file_of_the_folder_is_served_and_all_are_small() -> None:
    files = {f"/dashboard/{path.name}" for path in dashboard_files.FOLDER.iterdir()}
    assert files == dashboard_files.PAGE_PATHS - {"/dashboard", "/dashboard/"}
    assert sum(path.stat().st_size for path in dashboard_files.FOLDER.iterdir()) < 150_000


async def test_pages_of_other_sites_get_neither_facts_nor_a_request_ended(client: httpx.AsyncClient) -> None:
    for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert (await client.get(EVENTS, headers=headers)).status_code == 403
        assert (await client.post("/dashboard/cancel/x", headers=headers)).status_code == 403


async def test_the_feed_tells_of_a_request_and_a_cancel_ends_it(daemon: Running, engine: ScriptedEngine) -> None:
    engine.stall_after = 1
    asked = asyncio.ensure_future(daemon.client.post(URL, json=chat(model="default")))
    async with watching(daemon.client) as events:
        assert (await anext(events))[0] == "history"
        facts = await facts_with(events, 1)
        (live,) = facts["requests"]
        assert facts["status"] == "ok"
        assert live["prompt_tokens"] > 0
        assert live["key_id"] == ""
        assert (await daemon.client.post(f"/dashboard/cancel/{live['id']}")).status_code == 204
        answer = await asked
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "request_cancelled"
        await engine.idle.wait()
        facts = await facts_with(events, 0)
    (error,) = facts["errors"]
    assert (error["status"], error["code"], error["path"]) == (400, "request_cancelled", URL)
    assert (await daemon.client.post(f"/dashboard/cancel/{live['id']}")).status_code == 404


async def test_a_stream_that_is_cancelled_ends_with_an_error_event(daemon: Running, engine: ScriptedEngine) -> None:
    engine.stall_after = 1
    async with daemon.client.stream("POST", URL, json=chat(model="default", stream=True)) as response:
        lines = response.aiter_lines()
        first = json.loads((await anext(lines)).removeprefix("data: "))
        assert (await daemon.client.post(f"/dashboard/cancel/{first['id']}")).status_code == 204
        rest = [line async for line in lines if line.startswith("data: ")]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "request_cancelled"


async def test_errors_name_no_text(daemon: Running) -> None:
    secret = "a-secret-in-the-body"
    await daemon.client.post(URL, json=chat(secret, model="default", n=0))
    await daemon.client.get("/v1/models/nobody")
    async with watching(daemon.client) as events:
        facts = await facts_with(events, 0)
    assert [(error["status"], error["code"]) for error in facts["errors"]] == [
        (400, "invalid_value"),
        (404, "model_not_found"),
    ]
    assert secret not in json.dumps(facts)


async def test_nothing_is_computed_while_nobody_watches(serving: ServingState) -> None:
    feed = Feed(serving)
    assert feed._sampling is None
    first, second = feed.watch(Caller()), feed.watch(Caller())
    for watcher in (first, second):
        await anext(watcher)
        await anext(watcher)
    sampling = feed._sampling
    assert sampling is not None
    await first.aclose()
    assert not sampling.done()
    await second.aclose()
    assert feed._sampling is None
    await asyncio.wait({sampling}, timeout=WAIT_S)
    assert sampling.cancelled()


async def test_watchers_are_bounded(serving: ServingState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_WATCHERS", 1)
    feed = Feed(serving)
    first = feed.watch(Caller())
    await anext(first)
    with pytest.raises(OverloadedError):
        await anext(feed.watch(Caller()))
    await first.aclose()
    again = feed.watch(Caller())
    assert (await anext(again)).startswith(b"event: history")
    await again.aclose()


async def test_a_feed_ends_when_the_daemon_stops(daemon: Running) -> None:
    async with watching(daemon.client) as events:
        await facts_with(events, 0)
        daemon.stop.set()
        last = [value async for _, value in events][-1]
    assert last["status"] == "draining"
    await asyncio.wait_for(daemon.task, WAIT_S)


async def test_a_key_sees_and_ends_its_own_requests_and_a_high_one_all(
    folder: Path, engine: ScriptedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    mine, other, boss = (
        add_key(path, name, tier)[1] for name, tier in (("a", "normal"), ("b", "normal"), ("c", "high"))
    )
    engine.stall_after = 1
    async with running(folder, engine, keys_file=path) as daemon:
        await daemon.ready.wait()
        client = daemon.client
        assert (await client.get("/dashboard")).status_code == 200
        assert (await client.get(EVENTS)).status_code == 401
        assert (await client.post("/dashboard/cancel/x")).status_code == 401
        asked = asyncio.ensure_future(client.post(URL, json=chat(model="default"), headers=bearer(mine)))
        async with watching(client, bearer(mine)) as events:
            (live,) = (await facts_with(events, 1))["requests"]
        async with watching(client, bearer(other)) as events:
            facts = await facts_with(events, 0)
            assert facts["hidden_requests"] == 1
            assert facts["errors"] == []
        async with watching(client, bearer(boss)) as events:
            assert (await facts_with(events, 1))["requests"][0]["id"] == live["id"]
        cancel = f"/dashboard/cancel/{live['id']}"
        assert (await client.post(cancel, headers=bearer(other))).status_code == 404
        assert (await client.post(cancel, headers=bearer(boss))).status_code == 204
        assert (await asked).json()["error"]["code"] == "request_cancelled"
