"""The daemon on a real socket in the test's own event loop, and clients that speak bytes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx

from mlx_server.core.settings import Settings
from mlx_server.daemon.server import serve
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.scripted_memory import ScriptedMemory
from tests.integration.api.helpers import WAIT_S


@dataclass
class Answer:
    """status: 0 when the connection was closed without a word."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> Answer:
        """The next answer that has a length."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, headers = _parse_head(head)
        return Answer(status, headers, await self._reader.readexactly(int(headers["content-length"])))

    async def rest(self) -> Answer:
        """What comes until the daemon closes the connection."""
        data = await self._reader.read()
        self.close()
        if not data:
            return Answer(0, {}, b"")
        head, _, body = data.partition(b"\r\n\r\n")
        return Answer(*_parse_head(head), body)

    def close(self) -> None:
        self._writer.close()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers


def slow_reader(address: tuple[str, int]) -> socket.socket:
    """A blocking socket whose kernel takes in little."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(WAIT_S)
    connection.connect(address)
    return connection


@dataclass
class Running:
    client: httpx.AsyncClient
    stop: asyncio.Event
    ready: asyncio.Event
    task: asyncio.Task[None]

    @property
    def address(self) -> tuple[str, int]:
        url = urlsplit(str(self.client.base_url))
        return str(url.hostname), int(url.port or 0)

    async def connect(self) -> Peer:
        return Peer(*await asyncio.open_connection(*self.address))

    async def ask(self, data: bytes) -> Answer:
        """What comes back for these bytes, from a connection of their own that the daemon closes."""
        peer = await self.connect()
        peer.send(data)
        return await peer.rest()


@asynccontextmanager
async def running(
    folder: Path, engine: ScriptedEngine, memory: ScriptedMemory | None = None, **settings: Any
) -> AsyncIterator[Running]:
    """settings: not checked, so that a test's timeouts may be shorter than is legal. memory: by default never short."""
    stop, ready = asyncio.Event(), asyncio.Event()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve(
            Settings(model=str(folder), served_model_name="small", port=0).model_copy(update=settings),
            lambda settings, path, on_progress: engine,
            lambda url: ready.set(),
            on_listening=listening.set_result,
            stop=stop,
            memory_source=memory or ScriptedMemory(),
        )
    )
    try:
        async with (
            asyncio.timeout(WAIT_S),
            httpx.AsyncClient(base_url=await listening, timeout=WAIT_S, trust_env=False) as client,
        ):
            yield Running(client, stop, ready, task)
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(task, return_exceptions=True)
