"""What a client may send, owe and leave unread: each incident over a real socket."""

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mlx_server.api import body as body_limits
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, WAIT_S, chat, events
from tests.integration.api.live import Running, running, slow_reader

GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
SHORT_S = 0.2
MANY_TOKENS = 1500
"""With twenty alternatives each, more bytes than the kernel's buffers of a connection hold."""


def post(body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = [f"POST {URL} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if not any(line.lower().startswith("transfer-encoding") for line in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def still_good(server: Running) -> None:
    response = await server.client.post(URL, json=chat(model="small"))
    assert response.status_code == 200, response.text


def read_all(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


@contextmanager
def log_lines() -> Iterator[asyncio.Queue[str]]:
    """The daemon's log lines, as they are written."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.put_nowait(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mlx_server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


class TestHalfOpenConnections:
    """Slow loris: heads that never end."""

    @pytest.mark.parametrize(
        ("sent", "status"), [(b"", 0), (b"GET /v1/mod", 408), (GET[:-2], 408), (GET[:-2] + b"X-Long: ", 408)]
    )
    async def test_a_head_that_does_not_come_is_not_waited_for(self, folder: Path, sent: bytes, status: int) -> None:
        async with running(folder, ScriptedEngine(), client_timeout_s=SHORT_S) as server:
            answer = await server.ask(sent)
            assert answer.status == status
            if status:
                assert (answer.code, answer.headers["connection"]) == ("request_timeout", "close")

    async def test_a_byte_now_and_then_does_not_prolong_it(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine(), client_timeout_s=SHORT_S) as server:
            peer = await server.connect()
            peer.send(GET[:20])
            rest = asyncio.ensure_future(peer.rest())
            while not rest.done():
                peer.send(b"a")
                await asyncio.wait({rest}, timeout=SHORT_S / 10)
            assert rest.result().status == 408

    async def test_the_next_head_has_its_own_time_and_idling_is_free(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine(), client_timeout_s=SHORT_S) as server:
            idle, begun = await server.connect(), await server.connect()
            for peer in (idle, begun):
                peer.send(GET)
                assert (await peer.answer()).status == 200
            begun.send(b"GE")
            assert (await begun.rest()).status == 408
            idle.send(GET)
            assert (await idle.answer()).status == 200
            idle.close()

    async def test_an_unread_body_must_end(self, folder: Path) -> None:
        """A 404 does not read the body; the connection is not held open by it."""
        async with running(folder, ScriptedEngine(), client_timeout_s=SHORT_S) as server:
            peer = await server.connect()
            peer.send(post(b"{", length=1000).replace(URL.encode(), b"/nowhere"))
            assert (await peer.answer()).status == 404
            assert (await peer.rest()).status == 0


class TestBodies:
    async def test_a_slow_body_is_not_waited_for(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine(), client_timeout_s=SHORT_S) as server:
            await server.ready.wait()
            answer = await server.ask(post(b'{"messages":', length=1000))
            assert (answer.status, answer.code) == (408, "request_timeout")
            await still_good(server)

    async def test_a_body_that_dribbles_has_an_end(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(body_limits, "WHOLE_BODY_S", SHORT_S)
        async with running(folder, ScriptedEngine(), client_timeout_s=SHORT_S) as server:
            peer = await server.connect()
            peer.send(post(b"{", length=100_000))
            rest = asyncio.ensure_future(peer.rest())
            while not rest.done():
                peer.send(b" ")
                await asyncio.wait({rest}, timeout=SHORT_S / 10)
            assert rest.result().status == 408

    @pytest.mark.parametrize("declared", [True, False])
    async def test_an_oversized_body_gets_its_413_although_it_is_still_being_sent(
        self, folder: Path, declared: bool
    ) -> None:
        async with running(folder, ScriptedEngine(), max_body_bytes=10_000) as server:
            body = b" " * 5_000_000
            if declared:
                request = post(body)
            else:
                request = post(f"{len(body):x}\r\n".encode() + body, "Transfer-Encoding: chunked")
            answer = await server.ask(request)
            assert (answer.status, answer.code) == (413, "body_too_large")

    async def test_a_gzip_body_is_refused(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine()) as server:
            peer = await server.connect()
            peer.send(post(b"\x1f\x8b" + bytes(1000), "Content-Encoding: gzip"))
            assert (await peer.answer()).code == "bad_content_encoding"
            peer.close()

    async def test_bodies_that_arrive_together_are_bounded(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(body_limits, "MAX_IN_FLIGHT_BYTES", 15_000)
        async with running(folder, ScriptedEngine(), max_body_bytes=10_000) as server:
            await server.ready.wait()
            body = json.dumps(chat(model="small")).encode().ljust(9_000)
            peers = [await server.connect() for _ in range(2)]
            for peer in peers:
                peer.send(post(body)[:-1])
            refused = [asyncio.ensure_future(peer.rest()) for peer in peers]
            done, waiting = await asyncio.wait(refused, return_when=asyncio.FIRST_COMPLETED)
            answer = done.pop().result()
            assert (answer.status, answer.code) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
            (peers[refused.index(next(iter(waiting)))]).send(b" ")
            waiting.pop().cancel()
            await still_good(server)


class TestHeads:
    async def test_a_10_mb_header_is_refused(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine()) as server:
            answer = await server.ask(GET[:-2] + b"X-Big: " + b"a" * 10_000_000 + b"\r\n\r\n")
            assert (answer.status, answer.code) == (431, "head_too_large")
            await server.ready.wait()
            await still_good(server)

    async def test_too_many_headers_are_refused(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine()) as server:
            answer = await server.ask(GET[:-2] + b"".join(b"X-%d: 1\r\n" % n for n in range(101)) + b"\r\n")
            assert (answer.status, answer.code) == (431, "head_too_large")

    @pytest.mark.parametrize(
        "data",
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"nonsense\r\n\r\n", b"\r\n\r\n"],
    )
    async def test_what_is_not_http_is_told_so_as_json(self, folder: Path, data: bytes) -> None:
        async with running(folder, ScriptedEngine()) as server:
            answer = await server.ask(data)
            assert (answer.status, answer.code) == (400, "invalid_http")
            assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}

    async def test_other_versions_are_named(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine()) as server:
            answer = await server.ask(GET.replace(b"1.1", b"2.0"))
            assert (answer.status, answer.code) == (505, "invalid_http")

    async def test_a_refusal_does_not_repeat_what_was_sent(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine()) as server:
            answer = await server.ask(GET[:-2] + b"Authorization Bearer sk-secret\r\n\r\n")
            assert answer.status == 400
            assert b"secret" not in answer.body


class TestSmuggling:
    """Heads after which two readers could disagree where the next request begins."""

    @pytest.mark.parametrize(
        "headers",
        [
            ("Content-Length: 4", "Transfer-Encoding: chunked"),
            ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
            ("Transfer-Encoding: chunked, identity",),
            ("Transfer-Encoding: xchunked",),
            ("Transfer-Encoding : chunked",),
            ("Content-Length: 4", "Content-Length: 5"),
            ("Content-Length: 4, 5",),
            ("Content-Length: +4",),
            ("Content-Length: -1",),
            ("Content-Length: 0x4",),
            ("Content-Length: 99999999999999999999999",),
            (" Content-Length: 4",),
            ("X: a\0b", "Content-Length: 4"),
            ("X: a\rContent-Length: 4",),
        ],
    )
    async def test_ambiguous_lengths_are_refused(self, folder: Path, headers: tuple[str, ...]) -> None:
        async with running(folder, ScriptedEngine()) as server:
            lines = [f"POST {URL} HTTP/1.1", *headers, "Host: localhost", "", ""]
            if headers[0].startswith(" "):
                lines = [f"POST {URL} HTTP/1.1", *headers, "", ""]
            answer = await server.ask("\r\n".join(lines).encode() + b"0\r\n\r\n" + GET)
            assert answer.status in (400, 501)
            assert answer.body.count(b"HTTP/1.1 ") == 0  # what follows is no request

    async def test_chunks_before_http_1_1_are_refused(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine()) as server:
            request = f"POST {URL} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode()
            assert (await server.ask(request)).status == 400

    @pytest.mark.parametrize(
        "length", ["Content-Length: {0}\r\nContent-Length: {0}", "Content-Length:\r\n {0}", "Content-Length: {0}, {0}"]
    )
    async def test_lengths_that_agree_are_one_length(self, folder: Path, length: str) -> None:
        """Repeated and folded lengths are read one way only; the request behind is found where it begins."""
        async with running(folder, ScriptedEngine()) as server:
            body = b"[]" + GET
            head = f"POST {URL} HTTP/1.1\r\nHost: localhost\r\n{length.format(len(body))}\r\n\r\n"
            peer = await server.connect()
            peer.send(head.encode() + body + GET)
            assert (await peer.answer()).status == 400  # the body is no JSON
            assert (await peer.answer()).status == 200
            peer.close()

    async def test_bare_line_feeds_end_lines(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine()) as server:
            peer = await server.connect()
            peer.send(GET.replace(b"\r", b"") + GET)
            assert [(await peer.answer()).status for _ in range(2)] == [200, 200]
            peer.close()

    @pytest.mark.parametrize("chunk", [b"zz\r\n", b"2\r\nabcd\r\n", b"-1\r\n", b"1\r\na;"])
    async def test_broken_chunks_end_the_request(self, folder: Path, chunk: bytes) -> None:
        async with running(folder, ScriptedEngine()) as server:
            answer = await server.ask(post(chunk, "Transfer-Encoding: chunked"))
            assert (answer.status, answer.code) == (400, "invalid_http")


class TestConnectionFlood:
    async def test_one_too_many_is_told_so(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine(), max_connections=2) as server:
            peers = [await server.connect() for _ in range(2)]
            for peer in peers:
                peer.send(GET)
                assert (await peer.answer()).status == 200
            answer = await server.ask(b"")
            assert (answer.status, answer.code) == (503, "too_many_connections")
            assert int(answer.headers["retry-after"]) >= 1
            peers[0].send(GET)  # those that are in go on
            assert (await peers[0].answer()).status == 200
            for peer in peers:
                peer.close()

    async def test_after_a_flood_there_is_room_again(self, folder: Path) -> None:
        async with running(folder, ScriptedEngine(), max_connections=8, client_timeout_s=SHORT_S) as server:
            await server.ready.wait()
            flood = [await server.connect() for _ in range(200)]
            answers = await asyncio.gather(*(peer.rest() for peer in flood), return_exceptions=True)
            statuses = [getattr(answer, "status", 0) for answer in answers]
            assert 503 in statuses
            await still_good(server)


class TestSlowReaders:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_one_is_dropped_and_its_neighbour_is_not(self, folder: Path, stream: bool) -> None:
        engine = ScriptedEngine(reply=lambda request: [5] * MANY_TOKENS, max_model_len=4096)
        request: Any = chat(model="small", stream=stream, logprobs=True, top_logprobs=20)
        async with running(folder, engine, slow_client_s=SHORT_S) as server:
            await server.ready.wait()
            with log_lines() as lines, slow_reader(server.address) as slow:
                slow.sendall(post(json.dumps(request).encode()))
                neighbour = await server.client.post(URL, json=chat(model="small", stream=True))
                assert events(neighbour.text)[-1] == "DONE"
                while "was dropped" not in await lines.get():
                    pass
                if stream:
                    assert "outcome=slow_client" in await lines.get()
                await engine.idle.wait()
                with pytest.raises(ConnectionError):
                    await asyncio.to_thread(read_all, slow)
            assert not engine.live
            assert len(engine.closed_early) == stream

    async def test_a_reader_that_pauses_for_less_gets_everything(self, folder: Path) -> None:
        engine = ScriptedEngine(reply=lambda request: [5] * MANY_TOKENS, max_model_len=4096)
        request = chat(model="small", stream=True, logprobs=True, top_logprobs=20)
        async with running(folder, engine, slow_client_s=WAIT_S) as server:
            await server.ready.wait()
            async with server.client.stream("POST", URL, json=request) as response:
                parts = []
                async for part in response.aiter_text():
                    parts.append(part)
                    if len(parts) == 1:
                        await asyncio.sleep(SHORT_S)
            assert events("".join(parts))[-1] == "DONE"
