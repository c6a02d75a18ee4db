"""Event streams: late failures, keep-alives, and the log line."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator

import httpx2 as httpx
import pytest
from starlette.types import Message

from mlx_server.api.request_log import RequestRecord
from mlx_server.api.sse import KEEPALIVE, EventStream
from mlx_server.core.errors import GenerationError
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, WAIT_S, chat, events, text_of


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def run(frames: AsyncGenerator[bytes, None], keepalive_s: float = 30) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(WAIT_S):
        await EventStream(frames, RequestRecord(), keepalive_s)({}, never, send)
    return sent


async def test_a_late_failure_becomes_an_error_event_and_the_stream_ends(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.fail_after = 2
    response = await client.post(URL, json=chat(stream=True))
    assert response.status_code == 200
    *chunks, last = events(response.text)
    assert text_of(chunks)
    assert last["error"]["message"] == "scripted failure"
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


async def test_a_late_surprise_says_nothing_of_its_inside(caplog: pytest.LogCaptureFixture) -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise KeyError("secret inside")

    sent = await run(frames())
    body = b"".join(message.get("body", b"") for message in sent)
    assert b"internal_error" in body
    assert b"secret" not in body
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert any(record.exc_info for record in caplog.records)


async def test_a_failure_before_the_first_frame_is_raised() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        raise GenerationError("early")
        yield b""

    with pytest.raises(GenerationError):
        await run(frames())


async def test_a_long_wait_sends_comments() -> None:
    go = asyncio.Event()
    sent: list[Message] = []

    async def frames() -> AsyncGenerator[bytes, None]:
        await go.wait()
        yield b"data: 1\n\n"

    async def send(message: Message) -> None:
        sent.append(message)
        if message.get("body") == KEEPALIVE:
            go.set()

    async with asyncio.timeout(WAIT_S):
        await EventStream(frames(), RequestRecord(), keepalive_s=0.001)({}, never, send)
    bodies = [message.get("body") for message in sent[1:]]
    assert bodies[0] == KEEPALIVE
    assert bodies[-2:] == [b"data: 1\n\n", b""]
    assert [message["type"] for message in sent].count("http.response.start") == 1


async def test_one_log_line_per_request_without_any_text(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="mlx_server"):
        await client.post(URL, json=chat("xyzzy plugh", stream=True, user="somebody"))
        await client.post(URL, json=chat("refuse me"))
        await client.post(URL, content=json.dumps(chat("xyzzy")) + "}")
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("request_log")]
    assert len(lines) == 3
    for part in (
        "status=200",
        "prompt_tokens=",
        "completion_tokens=",
        "ttft_ms=",
        "total_ms=",
        "request=req-",
    ):
        assert part in lines[0]
    assert "status=400" in lines[1]
    everything = caplog.text
    for word in ("xyzzy", "plugh", "Hello there", "refuse me", "somebody"):
        assert word not in everything


async def test_a_path_cannot_forge_log_lines(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mlx_server"):
        await client.get("/v1/%0Arequest=forged")
    assert all("\n" not in record.getMessage() for record in caplog.records)
