"""Errors to HTTP, once, in the shape of the OpenAI API: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import http
import logging
from dataclasses import dataclass

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlx_server.core.errors import (
    DeadlineError,
    EngineDeadError,
    EngineNotReadyError,
    GenerationError,
    MemoryPressureError,
    MlxServeError,
    QueueFullError,
    RequestError,
)

logger = logging.getLogger(__name__)

ERROR_CODE_KEY = "mlx_serve_error_code"
"""Where, in the scope's state, an error's response leaves its code."""

ENGINE_DEAD_RETRY_S = 5
SHUTTING_DOWN_RETRY_S = 5
"""By then whoever supervises the daemon has started the next one."""
BUSY_RETRY_S = 5


_BODY_UNREAD = frozenset({http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE})


class RefusedError(RequestError):
    """A request refused with a status of its own (404, 413, 415, ...)."""

    def __init__(self, status: int, message: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message, field, code)
        self.status = status


class TimedOutError(RefusedError):
    """A 408: the client did not send what it announced in time."""

    def __init__(self, message: str) -> None:
        super().__init__(408, message, code="request_timeout")


class OverloadedError(MlxServeError):
    """The daemon has taken in as much as it can hold."""


class ShuttingDownError(MlxServeError):
    """The daemon ends."""

    def __init__(self) -> None:
        super().__init__("the daemon is shutting down")


@dataclass(slots=True, frozen=True)
class ErrorReply:
    """What goes over the wire. retry_after_s: seconds, or None. close: the connection takes no other request."""

    status: int
    message: str
    kind: str
    field: str | None = None
    code: str | None = None
    retry_after_s: int | None = None
    close: bool = False

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.field, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        if self.status == http.HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        if self.close:
            headers["connection"] = "close"
        return _ErrorResponse(self, headers)


class _ErrorResponse(Response):
    def __init__(self, reply: ErrorReply, headers: dict[str, str]) -> None:
        super().__init__(reply.body(), reply.status, headers, media_type="application/json")
        self._code = reply.code or reply.kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[ERROR_CODE_KEY] = self._code
        await super().__call__(scope, receive, send)


def error_reply(error: Exception) -> ErrorReply:
    """Status, type and code of an error. Anything unexpected is a 500 that says nothing of its inside."""
    match error:
        case RefusedError():
            close = error.status in _BODY_UNREAD
            kind = "invalid_request_error"
            return ErrorReply(error.status, error.message, kind, error.field, error.code, close=close)
        case RequestError():
            return ErrorReply(400, error.message, "invalid_request_error", error.field, error.code)
        case QueueFullError():
            return ErrorReply(429, str(error), "rate_limit_error", None, "queue_full", max(1, error.retry_after_s))
        case OverloadedError():
            return ErrorReply(503, str(error), "server_error", None, "overloaded", BUSY_RETRY_S, close=True)
        case ShuttingDownError():
            message, retry_s = str(error), SHUTTING_DOWN_RETRY_S
            return ErrorReply(503, message, "server_error", None, "shutting_down", retry_s, close=True)
        case DeadlineError():
            return ErrorReply(503, str(error), "server_error", None, "deadline_exceeded", BUSY_RETRY_S)
        case MemoryPressureError():
            return ErrorReply(503, str(error), "server_error", None, "memory_pressure", error.retry_after_s)
        case EngineNotReadyError():
            return ErrorReply(503, str(error), "server_error", None, "model_loading", max(1, error.retry_after_s))
        case EngineDeadError():
            message = str(error) or "the engine has stopped"
            return ErrorReply(503, message, "server_error", None, "engine_stopped", ENGINE_DEAD_RETRY_S)
        case GenerationError():
            return ErrorReply(500, str(error), "server_error", None, "generation_failed")
        case MlxServeError():
            return ErrorReply(500, str(error), "server_error")
        case _:
            return ErrorReply(500, "internal error", "server_error", None, "internal_error")


async def handle_known_error(request: Request, error: Exception) -> Response:
    """Exception handler for `MlxServeError`."""
    return error_reply(error).response()


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what the router raises: unknown paths and methods."""
    if not isinstance(error, HTTPException):
        raise error
    about = f"{request.method} {request.url.path}"
    messages = {404: f"there is no {about} here", 405: f"{about} is not allowed"}
    message = messages.get(error.status_code, str(error.detail))
    codes = {404: "not_found", 405: "method_not_allowed"}
    code = codes.get(error.status_code)
    reply = ErrorReply(error.status_code, message, "invalid_request_error", None, code).response()
    for name, value in (error.headers or {}).items():
        reply.headers[name] = value
    return reply
