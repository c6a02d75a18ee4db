"""The listening side: accept, stop accepting, wait for answers, close. Idle, it wakes up for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket

import uvicorn
from starlette.types import ASGIApp

from mlx_server.core.settings import Settings
from mlx_server.daemon.http_protocol import Connections, HttpProtocol

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""An idle connection is kept for longer than clients keep theirs, so that they close first."""
_BACKLOG = 2048
_OTHER_FILES = 256  # weights, logs, sockets of the engine


class HttpServer:
    """uvicorn's connections without its `Server`, whose main loop and shutdown poll ten times a second."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._shared = Connections(settings)
        self._config = uvicorn.Config(
            app,
            http=HttpProtocol,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,  # RequestLog adds it
            proxy_headers=False,  # any local program could claim to be a proxy
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Listen on a bound socket, which belongs to the server from now on."""
        raise_file_limit(self._shared.settings.max_connections)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpProtocol(self._config, self._shared), sock=listener, backlog=_BACKLOG
        )

    def stop_accepting(self) -> None:
        """Close the port. A connection that is open is answered once more, and then closed."""
        self._shared.draining = True
        if self._server is not None:
            self._server.close()

    async def answered(self) -> None:
        """Return once no request is being answered."""
        while self._shared.tasks:
            await asyncio.wait(self._shared.tasks)

    async def close(self, within_s: float) -> None:
        """Close every connection; what is still being answered or unread after `within_s` is cut off."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.answered()
                for connection in [*self._shared.connections]:
                    connection.end()  # type: ignore[union-attr]
                await self._shared.gone.wait()
        for task in self._shared.tasks:
            task.cancel()
        for connection in [*self._shared.connections, *self._shared.refused]:
            connection.abort()  # type: ignore[union-attr]
        await self.answered()
        await self._shared.gone.wait()


def raise_file_limit(max_connections: int) -> None:
    """Let this process hold as many files as the connections need, refused ones included; launchd gives it 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * max_connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has a limit below its hard limit
        logger.warning("the limit of open files stays at %d: %s", soft, error)
