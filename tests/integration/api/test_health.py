"""GET /health is about the daemon, GET /ready about its answers."""

import httpx2 as httpx
import pytest

from mlx_server.api.serving import ServingState
from tests.fakes.scripted_engine import ScriptedEngine


async def statuses(client: httpx.AsyncClient) -> tuple[str, int]:
    """What both say, and the HTTP status of /ready."""
    health, ready = await client.get("/health"), await client.get("/ready")
    assert health.status_code == 200
    assert health.json()["status"] == ready.json()["status"]
    if ready.status_code != 200:
        assert int(ready.headers["retry-after"]) >= 1
        assert ready.json()["reason"] == health.json()["reason"] != ""
    return ready.json()["status"], ready.status_code


async def test_an_answering_daemon_shows_its_figures(client: httpx.AsyncClient) -> None:
    assert await statuses(client) == ("ok", 200)
    about = (await client.get("/health")).json()
    assert (about["model"], about["max_model_len"]) == ("org/small", 512)
    assert about["uptime_s"] >= 0
    assert about["stats"]["running"] == 0


async def test_loading_says_how_far(client: httpx.AsyncClient, serving: ServingState) -> None:
    serving.model, serving.stage, serving.progress = None, "reading weights", 0.25
    assert await statuses(client) == ("loading", 503)
    about = (await client.get("/ready")).json()
    assert (about["stage"], about["progress"]) == ("reading weights", 0.25)


async def test_a_restarting_engine_is_alive_and_not_ready(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedEngine, "is_restarting", True)
    assert await statuses(client) == ("restarting", 503)


async def test_an_engine_that_cannot_be_restarted_yet(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.started = False
    assert await statuses(client) == ("restarting", 503)


async def test_a_dead_engine(client: httpx.AsyncClient, engine: ScriptedEngine, serving: ServingState) -> None:
    engine.dead = True
    assert await statuses(client) == ("failed", 503)
    assert serving.engine_died.is_set()


async def test_a_draining_daemon(client: httpx.AsyncClient, serving: ServingState) -> None:
    serving.draining = True
    assert await statuses(client) == ("draining", 503)
