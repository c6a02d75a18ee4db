"""Server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlx_server.api.disconnect import until_disconnect
from mlx_server.api.errors import error_reply
from mlx_server.api.request_log import RequestRecord
from mlx_server.core.errors import MlxServeError

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": waiting\n\n"
KEEPALIVE_S = 15.0
"""Silence before the first token after which a comment is sent: clients and proxies wait on."""


def frame(data: bytes) -> bytes:
    """One event. `data` is JSON on one line."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Streams frames; the status waits for the first of them.

    A failure before anything was sent is raised, and so gets its own status. A later one becomes an
    error event, and the stream ends without `[DONE]`: never a silent drop. When the client goes away the
    frames' generator is closed at once, before the first frame too.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        record: RequestRecord,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._record = record
        self._keepalive_s = keepalive_s
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        try:
            async with aclosing(self._frames) as frames:
                await self._send(send, await self._first(frames, send))
                async for data in frames:
                    await self._send(send, data)
        except Exception as error:  # the request ends here, and its client is told
            if not self._started:
                raise
            self._record.fail(error)
            await self._send(send, frame(error_reply(error).body()))
            if not isinstance(error, MlxServeError):
                logger.exception("request %s failed while streaming", self._record.request_id)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _first(self, frames: AsyncGenerator[bytes, None], send: Send) -> bytes:
        """The first frame. A request that waits long has been accepted: the stream may start."""
        pending = asyncio.ensure_future(anext(frames))
        try:
            while not (await asyncio.wait({pending}, timeout=self._keepalive_s))[0]:
                await self._send(send, KEEPALIVE)
            return pending.result()
        finally:
            if not pending.done():
                pending.cancel()
                await asyncio.wait({pending})
            elif not pending.cancelled():
                pending.exception()  # the client may be gone before anybody asks what has come of it

    async def _send(self, send: Send, data: bytes) -> None:
        if not self._started:
            self._started = True
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
        await send({"type": "http.response.body", "body": data, "more_body": True})
