"""A client that goes away frees its rows at once: queued, in prefill, decoding, streamed or not."""

import asyncio

import pytest
from fastapi import FastAPI

from mlx_server.api.disconnect import ClientDisconnectedError, until_disconnect
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import WAIT_S, RawCall, chat, events, text_of


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stall_after", [0, 2])
async def test_the_engine_iterators_are_closed(
    app: FastAPI, engine: ScriptedEngine, stream: bool, n: int, stall_after: int
) -> None:
    engine.stall_after = stall_after
    call = RawCall(app, chat(stream=stream, n=n))
    async with asyncio.timeout(WAIT_S):
        await engine.stalled.wait()
        if stream and stall_after:
            await call.body_seen.wait()
        assert len(engine.live) == n
        call.go_away()
        await call.task
    assert not engine.live
    assert len(engine.closed_early) == n
    if not stream or stall_after == 0:
        assert call.sent == []


async def test_a_connected_client_gets_its_answer_after_a_stall(app: FastAPI, engine: ScriptedEngine) -> None:
    engine.stall_after = 1
    call = RawCall(app, chat(stream=True))
    async with asyncio.timeout(WAIT_S):
        await engine.stalled.wait()
        engine.resume.set()
        await call.task
    assert text_of(events(call.text)) == "Hello there, 😀 world."


async def test_cancelling_the_request_closes_the_iterators(app: FastAPI, engine: ScriptedEngine) -> None:
    engine.stall_after = 1
    call = RawCall(app, chat(stream=True, n=2))
    async with asyncio.timeout(WAIT_S):
        await engine.stalled.wait()
        call.task.cancel()
        await asyncio.gather(call.task, return_exceptions=True)
    assert not engine.live


async def test_work_has_ended_when_the_disconnect_is_reported() -> None:
    ended = False

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    with pytest.raises(ClientDisconnectedError):
        await until_disconnect(receive, work())  # type: ignore[arg-type]
    assert ended
