"""A bare streaming client: every byte of the framing is checked, and it can misbehave on purpose."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.answer import Answer

CHAT = "/v1/chat/completions"
_SMALL_BUFFER = 4096
_LIMIT = 1 << 20


class FramingError(Exception):
    """The response is not the HTTP or the event stream that it says it is."""


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 80)


def request_bytes(url: str, body: bytes, path: str = CHAT) -> bytes:
    """A POST on a connection of its own."""
    head = f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def chat_bytes(url: str, body: dict[str, Any], stream: bool) -> bytes:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return request_bytes(url, json.dumps(body | options).encode())


async def connect(url: str, small_buffer: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """small_buffer: let the daemon feel at once that nobody reads."""
    if not small_buffer:
        return await asyncio.open_connection(*address(url), limit=_LIMIT)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address(url))
    return await asyncio.open_connection(sock=sock, limit=_SMALL_BUFFER)


async def ask(
    url: str,
    body: dict[str, Any],
    stream: bool,
    *,
    into: Answer | None = None,
    break_off: Callable[[Answer], bool] = lambda answer: False,
    pause: tuple[int, float] | None = None,
) -> Answer:
    """One chat completion. What goes wrong on the way is noted in the answer, not raised.

    into: filled while it comes, for who watches. break_off: asked after each event whether to slam the connection.
    pause: (pieces, seconds) after so many pieces to read nothing for so long.
    """
    answer = into or Answer()
    writer = None
    try:
        reader, writer = await connect(url, small_buffer=pause is not None)
        writer.write(chat_bytes(url, body, stream))
        await _read(reader, answer, stream, break_off, pause)
        if answer.broken_off:
            writer.transport.abort()
    except (OSError, EOFError, ValueError, KeyError, FramingError) as error:
        answer.transport = f"{type(error).__name__}: {error}"
    finally:
        if writer is not None:
            writer.close()
    return answer


async def _read(
    reader: asyncio.StreamReader,
    answer: Answer,
    stream: bool,
    break_off: Callable[[Answer], bool],
    pause: tuple[int, float] | None,
) -> None:
    answer.status, answer.headers = await read_head(reader)
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        async for data in _events(_parts(reader, answer.headers)):
            if answer.dones:
                raise FramingError(f"an event after [DONE]: {data[:80]!r}")
            _take_event(answer, data)
            if pause is not None and len(answer.times) >= pause[0]:
                await asyncio.sleep(pause[1])
                pause = None
            if break_off(answer):
                answer.broken_off = True
                return
    else:
        if stream and answer.status == 200:
            raise FramingError("a stream was asked for, and none came")
        data = b"".join([part async for part in _parts(reader, answer.headers)])
        answer.take(json.loads(data), "message", time.monotonic())


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers, whose names are in lower case."""
    status = (await reader.readuntil(b"\r\n")).split(None, 2)
    if len(status) < 2 or not status[1].isdigit():
        raise FramingError(f"not a status line: {status!r}")
    headers = {}
    while line := (await reader.readuntil(b"\r\n"))[:-2]:
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return int(status[1]), headers


async def _parts(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") != "chunked":
        yield await reader.readexactly(int(headers["content-length"]))
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        data = await reader.readexactly(size + 2)
        yield data[:-2]
    await reader.readuntil(b"\r\n")


async def _events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Data of the events; comments are dropped."""
    rest = b""
    async for part in parts:
        *events, rest = (rest + part).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                yield event[6:]
            elif not event.startswith(b":"):
                raise FramingError(f"not an event: {event[:80]!r}")
    if rest:
        raise FramingError(f"half an event at the end: {rest[:80]!r}")


def _take_event(answer: Answer, data: bytes) -> None:
    if data == b"[DONE]":
        answer.dones += 1
    else:
        answer.take(json.loads(data), "delta", time.monotonic())


async def get_json(url: str, path: str) -> tuple[int, Any]:
    """Status and body of a GET. Raises `OSError`, `EOFError`."""
    reader, writer = await connect(url)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: close\r\n\r\n".encode())
        status, headers = await read_head(reader)
        return status, json.loads(b"".join([part async for part in _parts(reader, headers)]))
    finally:
        writer.close()
