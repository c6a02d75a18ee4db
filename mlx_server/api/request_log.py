"""One log line per request, and the place where a request's unexpected exceptions end."""

from __future__ import annotations

import functools
import http
import logging
import secrets
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import quote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlx_server.api.disconnect import ClientDisconnectedError
from mlx_server.api.errors import error_reply
from mlx_server.core.errors import MlxServeError
from mlx_server.telemetry.traces import Attributes, request_span

logger = logging.getLogger(__name__)

_STATE_KEY = "mlx_serve_record"
_QUIET_PATHS = frozenset({"/health", "/ready"})
SLOW_CLIENT = "slow_client"
"""Outcome of a request whose client stopped reading."""
_CLIENT_GONE = 499  # nginx's status for a client that closed the connection; only the log sees it


@dataclass(slots=True)
class RequestRecord:
    """What the log line says. Owned by the request's task; numbers and names only, never text."""

    request_id: str = field(default_factory=lambda: "req-" + secrets.token_hex(12))
    started_s: float = field(default_factory=time.perf_counter)
    status: int = 0
    key_id: str = ""
    outcome: str = "ok"
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float = 0.0
    first_token_s: float | None = None

    def fail(self, error: BaseException) -> None:
        self.outcome = type(error).__name__

    def note_token(self) -> None:
        """Call at each delta; the first one counts."""
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.started_s

    def attributes(self) -> Attributes:
        """The same facts for a trace."""
        return {
            "request_id": self.request_id,
            "status": self.status,
            "outcome": self.outcome,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "queue_s": self.queue_s,
            "ttft_s": self.first_token_s,
        }

    def line(self, method: str, path: str) -> str:
        parts = [f"request={self.request_id}", method, quote(path)[:200], f"status={self.status}"]
        refused = self.outcome == "ok" and self.status >= http.HTTPStatus.BAD_REQUEST
        parts.append(f"outcome={'refused' if refused else self.outcome}")
        if self.key_id:
            parts.append(f"key={self.key_id}")
        if self.prompt_tokens is not None:
            parts.append(f"prompt_tokens={self.prompt_tokens} cached_tokens={self.cached_tokens}")
            parts.append(f"completion_tokens={self.completion_tokens} queue_ms={self.queue_s * 1e3:.0f}")
        if self.first_token_s is not None:
            parts.append(f"ttft_ms={self.first_token_s * 1e3:.0f}")
        parts.append(f"total_ms={(time.perf_counter() - self.started_s) * 1e3:.0f}")
        return " ".join(parts)


def record_of(request: Request) -> RequestRecord:
    """The record of this request; a loose one where the middleware is not installed."""
    record = request.scope.get("state", {}).get(_STATE_KEY)
    return record if isinstance(record, RequestRecord) else RequestRecord()


def note_slow_client(scope: Scope) -> None:
    """The connection of this request is about to be cut, because its client does not read."""
    record = scope.get("state", {}).get(_STATE_KEY)
    if isinstance(record, RequestRecord):
        record.outcome = SLOW_CLIENT


@functools.lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


class RequestLog:
    """ASGI middleware: `x-request-id` and `date` on every response, a log line, a 500 for what nobody expected."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord()
        scope.setdefault("state", {})[_STATE_KEY] = record
        header = (b"x-request-id", record.request_id.encode())

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                date = (b"date", _date(int(time.time())))
                message["headers"] = [*message.get("headers", ()), header, date]
            await send(message)

        with request_span(scope["method"], scope["path"]) as note:
            try:
                await self._app(scope, receive, send_noted)
            except ClientDisconnectedError:
                if record.outcome != SLOW_CLIENT:
                    record.outcome = "disconnected"
                record.status = record.status or _CLIENT_GONE
            except Exception as error:  # noqa: BLE001 - the request ends here
                await self._answer(error, record, send_noted)
            finally:
                note(record.attributes())
                level = logging.DEBUG if scope["path"] in _QUIET_PATHS else logging.INFO
                if logger.isEnabledFor(level):
                    logger.log(level, "%s", record.line(scope["method"], scope["path"]))

    async def _answer(self, error: Exception, record: RequestRecord, send: Send) -> None:
        record.fail(error)
        if not isinstance(error, MlxServeError):
            logger.error("request %s failed", record.request_id, exc_info=error)
        if record.status == 0:
            response = error_reply(error).response()
            start = {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
            await send(start)
            await send({"type": "http.response.body", "body": bytes(response.body), "more_body": False})
        else:
            raise error
