"""One HTTP connection: uvicorn's, with bounds on what a client may send, owe and leave unread."""

from __future__ import annotations

import asyncio
import http
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import h11
import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from mlx_server.api.errors import ErrorReply
from mlx_server.api.request_log import note_slow_client
from mlx_server.core.settings import Settings

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
"""Longest head of a request: its line and headers."""
MAX_HEADERS = 100
LINGER_S = 2.0
"""How long a client that is still sending may take to read why it was refused."""
_CODES = {
    408: "request_timeout",
    431: "head_too_large",
    503: "too_many_connections",
}


class Connections(ServerState):
    """What all connections of a daemon share. Owned by its event loop.

    connections: those that are served; refused: those that only read why they are not. `gone` is set while there is
    none of either.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.refused: set[HttpProtocol] = set()
        self.draining = False
        self.gone = asyncio.Event()
        self.gone.set()

    def note_opened(self) -> None:
        self.gone.clear()

    def note_closed(self, connection: HttpProtocol) -> None:
        self.refused.discard(connection)
        if not self.refused and not self.connections:
            self.gone.set()


class StrictParser(h11.Connection):
    """h11, less lenient, and it remembers why it refused."""

    refusal: h11.RemoteProtocolError | None = None

    def next_event(self) -> Any:
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_head(event)
        except h11.RemoteProtocolError as error:
            self.refusal = error
            raise
        return event


def _check_head(request: h11.Request) -> None:
    """Raise `RemoteProtocolError` for a head that is too large, or after which two readers could see the body end
    in two places."""
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("only HTTP/1.0 and HTTP/1.1 are spoken here", error_status_hint=505)
    size = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
    if size > MAX_HEAD_BYTES or len(request.headers) > MAX_HEADERS:
        message = f"the head of the request is larger than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers"
        raise h11.RemoteProtocolError(message, error_status_hint=431)
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
        raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or before HTTP/1.1")


class HttpProtocol(H11Protocol):
    """A connection that ends when its client sends too slowly, reads too slowly, or sends no HTTP.

    The head of a request must be complete `client_timeout_s` after the connection was opened or the head begun, and
    what a client still sends after it was answered must end as soon; bodies that are read are timed where they are read
    (`api/body.py`). Output that a client leaves unread for `slow_client_s` is thrown away. Every wait is one timer.
    """

    def __init__(self, config: uvicorn.Config, shared: Connections) -> None:
        super().__init__(config, shared, {})
        self.conn: StrictParser = StrictParser(h11.SERVER, MAX_HEAD_BYTES)
        self._shared = shared
        self._ending = False
        self._owes_timer = _Timer(self.loop, self._give_up)
        self._slow_timer = _Timer(self.loop, self._drop_slow_client)
        self._end_timer = _Timer(self.loop, self._reset)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        super().connection_made(cast(asyncio.Transport, _PoliteTransport(transport, self)))
        self._shared.note_opened()
        if len(self.connections) > self._shared.settings.max_connections:
            self._turn_away()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        if self._shared.draining:
            self.end()
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._slow_timer.start(self._shared.settings.slow_client_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._slow_timer.cancel()

    def timeout_keep_alive_handler(self) -> None:
        self.end()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for anything that is not HTTP."""
        refusal = self.conn.refusal
        about = str(refusal or msg).partition(": b")[0]  # h11 ends with the offending bytes
        self._refuse(refusal.error_status_hint if refusal else 400, f"the request is not valid HTTP: {about}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending = True
        self._unset_keepalive_if_required()
        for timer in (self._owes_timer, self._slow_timer, self._end_timer):
            timer.cancel()
        super().connection_lost(exc)
        self._shared.note_closed(self)

    def end(self) -> None:
        """Close when what was written is out. A client that is still sending gets the time to read it first."""
        if self._ending:
            return
        self._ending = True
        self._owes_timer.cancel()
        self._unset_keepalive_if_required()
        if self.conn.their_state is h11.SEND_BODY or self.conn.refusal is not None or self in self._shared.refused:
            try:
                self._socket.write_eof()  # a close now would be a reset, which takes the answer away from its reader
            except OSError:  # the client has reset the connection
                self.abort()
                return
            self.flow.resume_reading()
            self._end_timer.start(LINGER_S)
        else:
            unread = self._socket.get_write_buffer_size() > 0
            self._socket.close()
            if unread:
                self._end_timer.start(self._shared.settings.slow_client_s)

    def abort(self) -> None:
        """Close now, whatever is unread."""
        self._socket.abort()

    @property
    def is_ending(self) -> bool:
        return self._ending

    def _watch(self) -> None:
        """Start or stop the clock of a client that owes us bytes no request is waiting for."""
        if self._ending or self._unanswered() is not None:
            self._owes_timer.cancel()
        elif self._owes():
            self._unset_keepalive_if_required()
            self._owes_timer.start(self._shared.settings.client_timeout_s)
        else:
            self._owes_timer.cancel()
            if self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.end)

    def _owes(self) -> bool:
        state = self.conn.their_state
        return state is h11.SEND_BODY or (
            state is h11.IDLE and (self._last_request() is None or self._has_begun_head())
        )

    def _last_request(self) -> RequestResponseCycle | None:
        return self.cycle  # None until the first one, whatever uvicorn declares

    def _unanswered(self) -> RequestResponseCycle | None:
        """The request that is being answered."""
        cycle = self._last_request()
        return None if cycle is None or cycle.response_complete else cycle

    def _has_begun_head(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _give_up(self) -> None:
        if self._has_begun_head():
            self._refuse(408, "the head of the request did not arrive in time")
        else:
            self.abort()

    def _turn_away(self) -> None:
        self.connections.discard(self)
        if len(self._shared.refused) < self._shared.settings.max_connections:
            self._shared.refused.add(self)
            self._refuse(503, "too many connections are open", retry_after_s=1)
        else:
            self.abort()

    def _refuse(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        """Answer in place of the application, and close."""
        cycle = self._unanswered()
        if cycle is not None:
            cycle.disconnected = True  # ends the request that was waiting for its body
            cycle.message_event.set()
            if cycle.response_started:
                self.abort()
                return
        kind = "server_error" if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        reply = ErrorReply(status, message, kind, None, _CODES.get(status, "invalid_http"), retry_after_s, close=True)
        self._shared.refused.add(self)
        self.transport.write(_as_bytes(reply))
        self.end()

    def _drop_slow_client(self) -> None:
        cycle = self._last_request()
        if cycle is not None:
            note_slow_client(cast(Scope, cycle.scope))
        logger.info("a client that read nothing for %g s was dropped", self._shared.settings.slow_client_s)
        self._reset()

    def _reset(self) -> None:
        """As `abort`, and the kernel's buffers of the connection are freed too."""
        self._socket.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()


class _Timer:
    """Calls `act` once, `start`'s seconds after the first `start` since the last `cancel`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
        self._loop = loop
        self._act = act
        self._handle: asyncio.TimerHandle | None = None

    def start(self, delay_s: float) -> None:
        if self._handle is None:
            self._handle = self._loop.call_later(delay_s, self._act)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _PoliteTransport:
    """The transport as uvicorn sees it: its `close` is the connection's `end`."""

    def __init__(self, transport: asyncio.Transport, connection: HttpProtocol) -> None:
        self._transport = transport
        self._connection = connection
        self.write = transport.write
        self.close = connection.end

    def is_closing(self) -> bool:
        return self._connection.is_ending or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _as_bytes(reply: ErrorReply) -> bytes:
    response = reply.response()
    lines = [f"HTTP/1.1 {reply.status} {http.HTTPStatus(reply.status).phrase}".encode()]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])
