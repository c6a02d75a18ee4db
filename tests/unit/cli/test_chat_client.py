"""The client against streams and answers a daemon might send."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence

import httpx2
import pytest

from mlx_server.cli.chat_client import AnswerEnd, ChatClient, ChatError, TextPart, is_loopback

URL = "http://127.0.0.1:9"
Responder = Callable[[httpx2.Request], httpx2.Response]


class Stream(httpx2.AsyncByteStream):
    """A response body in the given pieces; `hold` keeps it open after them."""

    def __init__(self, pieces: Sequence[bytes], hold: bool = False, error: Exception | None = None) -> None:
        self._pieces = pieces
        self._hold = hold
        self._error = error
        self.closed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._error is not None:
            raise self._error
        if self._hold:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed.set()


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def delta(text: str | None, reason: str | None = None, **more: object) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text, **more}, "finish_reason": reason}])


USAGE = event(
    choices=[],
    usage={"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
)
DONE = b"data: [DONE]\n\n"
WHOLE = [delta(""), delta("Grü"), b": waiting\n\n", delta("ße\nzwei"), delta(None, "stop"), USAGE, DONE]


def client_for(respond: Responder) -> ChatClient:
    return ChatClient(URL, httpx2.MockTransport(respond))


def streaming(stream: Stream) -> Responder:
    return lambda request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


async def collect(respond: Responder) -> list[TextPart | AnswerEnd]:
    async with client_for(respond) as client:
        return [part async for part in client.answer({"messages": []})]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_cut_anywhere(size: int) -> None:
    wire = b"".join(WHOLE)
    pieces = [wire[i : i + size] for i in range(0, len(wire), size)]
    *parts, end = await collect(streaming(Stream(pieces)))
    assert [part.text for part in parts if isinstance(part, TextPart)] == ["Grü", "ße\nzwei"]
    assert isinstance(end, AnswerEnd)
    assert (end.finish_reason, end.prompt_tokens, end.completion_tokens, end.cached_tokens) == ("stop", 9, 3, 4)


async def test_reasoning_is_told_apart() -> None:
    pieces = [delta(None, reasoning_content="hm"), delta("yes", "stop"), DONE]
    first, second, end = await collect(streaming(Stream(pieces)))
    assert first == TextPart("hm", is_reasoning=True)
    assert second == TextPart("yes")
    assert isinstance(end, AnswerEnd)
    assert end.completion_tokens is None


async def test_the_request_asks_for_a_stream_with_usage() -> None:
    seen: list[dict[str, object]] = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        return streaming(Stream(WHOLE))(request)

    await collect(respond)
    assert seen == [{"messages": [], "stream": True, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (429, {"message": "the waiting queue is full"}, "the daemon is busy: the waiting queue is full (/retry"),
        (400, {"message": "too long", "code": "context_length_exceeded"}, "too long (/undo takes back"),
        (400, {"message": "'top_p' must be a number"}, "'top_p' must be a number"),
        (503, {"message": "the model is still loading", "code": "model_loading"}, "still loading"),
    ],
)
async def test_refusals_are_one_clear_line(status: int, error: dict[str, str], said: str) -> None:
    with pytest.raises(ChatError) as raised:
        await collect(lambda request: httpx2.Response(status, json={"error": error}))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_refusal_without_a_body() -> None:
    with pytest.raises(ChatError, match="answered 502"):
        await collect(lambda request: httpx2.Response(502, text="<html>Bad gateway</html>"))


async def test_error_in_the_middle() -> None:
    pieces = [delta("half"), event(error={"message": "the engine has stopped"})]
    with pytest.raises(ChatError, match="broke off: the engine has stopped"):
        await collect(streaming(Stream(pieces)))


async def test_stream_that_ends_early() -> None:
    with pytest.raises(ChatError, match="in the middle of the answer"):
        await collect(streaming(Stream([delta("half")])))


async def test_connection_lost() -> None:
    stream = Stream([delta("half")], error=httpx2.ReadError("reset by peer"))
    with pytest.raises(ChatError, match="was lost: reset by peer"):
        await collect(streaming(stream))


async def test_nothing_listens() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(ChatError, match="nothing answers"):
        await collect(refuse)
    async with client_for(refuse) as client:
        assert await client.health() is None


async def test_not_an_event_stream() -> None:
    with pytest.raises(ChatError):
        await collect(lambda request: httpx2.Response(200, json={}))
    with pytest.raises(ChatError, match="no chat completion"):
        await collect(streaming(Stream([b"data: <html>\n\n"])))


async def test_cancelling_closes_the_stream() -> None:
    stream = Stream([delta("half")], hold=True)
    arrived = asyncio.Event()

    async def read() -> None:
        async with client_for(streaming(stream)) as client:
            async for _ in client.answer({}):
                arrived.set()

    task = asyncio.create_task(read())
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.closed.is_set()


async def test_health_of_a_daemon_and_of_a_stranger() -> None:
    about = {"status": "loading", "model": "m", "stage": "weights", "progress": 0.5, "unknown": 1}
    async with client_for(lambda request: httpx2.Response(503, json=about)) as client:
        health = await client.health()
    assert health is not None
    assert (health.status, health.stage, health.progress) == ("loading", "weights", 0.5)
    async with client_for(lambda request: httpx2.Response(200, text="It works!")) as client:
        with pytest.raises(ChatError, match="not mlx-serve"):
            await client.health()


async def test_serves_asks_for_the_model_by_name() -> None:
    def respond(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200 if request.url.path == "/v1/models/org/name" else 404)

    async with client_for(respond) as client:
        assert await client.serves("org/name")
        assert not await client.serves("other")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("example.org", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
