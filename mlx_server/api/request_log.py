"""One log line per request, and the place where a request's unexpected exceptions end."""

from __future__ import annotations

import functools
import http
import json
import logging
import secrets
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlx_server.api.disconnect import ClientDisconnectedError
from mlx_server.api.errors import ERROR_CODE_KEY, error_reply
from mlx_server.api.live.recent_errors import RecentErrors
from mlx_server.core.errors import MlxServeError
from mlx_server.telemetry.logs import with_fields
from mlx_server.telemetry.metrics import Metrics
from mlx_server.telemetry.traces import Attributes, Phase, note_phases, request_span

logger = logging.getLogger(__name__)

_STATE_KEY = "mlx_serve_record"
_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
SLOW_CLIENT = "slow_client"
"""Outcome of a request whose client stopped reading."""
_PROMPT_CHARS = 2000
_CLIENT_GONE = 499  # nginx's status for a client that closed the connection; only the log sees it


@dataclass(slots=True)
class RequestRecord:
    """What the log line says. Owned by the request's task; numbers and names only, never text."""

    request_id: str = field(default_factory=lambda: "req-" + secrets.token_hex(12))
    started_s: float = field(default_factory=time.perf_counter)
    status: int = 0
    key_id: str = ""
    outcome: str = "ok"
    code: str = ""  # of the error, as the API names it
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float = 0.0
    submitted_s: float = 0.0  # to the engine; this and the next two: since started_s
    first_token_s: float | None = None
    last_token_s: float = 0.0
    streamed: bool = False

    def fail(self, error: Exception) -> None:
        reply = error_reply(error)
        self.outcome, self.code = type(error).__name__, reply.code or reply.kind

    def note_submitted(self) -> None:
        """Call before the engine is asked."""
        self.submitted_s = time.perf_counter() - self.started_s

    def note_token(self) -> None:
        """Call at each delta."""
        self.last_token_s = time.perf_counter() - self.started_s
        if self.first_token_s is None:
            self.first_token_s = self.last_token_s

    def attributes(self) -> Attributes:
        """The same facts for a trace."""
        return {
            "request_id": self.request_id,
            "status": self.status,
            "outcome": self.ending,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "queue_s": self.queue_s,
            "ttft_s": self.first_token_s,
        }

    def phases(self) -> list[Phase]:
        """queue, prefill, decode and, of a stream, its writing; of a request that had no token, none.

        Of several choices: until the first token of any, until the last of all.
        """
        if self.first_token_s is None:
            return []
        first_s, ended_s = self.started_s + self.first_token_s, time.perf_counter()
        admitted_s = min(self.started_s + self.submitted_s + self.queue_s, first_s)
        prompt: Attributes = {"prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens}
        phases = [
            Phase("queue", self.started_s + self.submitted_s, admitted_s),
            Phase("prefill", admitted_s, first_s, prompt),
            Phase("decode", first_s, self.started_s + self.last_token_s, {"completion_tokens": self.completion_tokens}),
        ]
        return [*phases, Phase("stream", first_s, ended_s)] if self.streamed else phases

    @property
    def ending(self) -> str:
        """The outcome, in a word."""
        refused = self.outcome == "ok" and self.status >= http.HTTPStatus.BAD_REQUEST
        return "refused" if refused else self.outcome

    def fields(self, method: str, path: str) -> dict[str, Any]:
        """The same facts for a log in JSON. Seconds."""
        known = {name: value for name, value in self.attributes().items() if value is not None}
        about = {"message": "request", "method": method, "path": quote(path)[:200], "key_id": self.key_id}
        return about | known | {"total_s": round(time.perf_counter() - self.started_s, 6)}

    def line(self, method: str, path: str) -> str:
        parts = [f"request={self.request_id}", method, quote(path)[:200], f"status={self.status}"]
        parts.append(f"outcome={self.ending}")
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


def log_prompt(record: RequestRecord, messages: Any) -> None:
    """What a client asks, on one line. Only where `log_prompts` is set."""
    text = json.dumps(messages, ensure_ascii=False).encode(errors="replace").decode()
    shown = text[:_PROMPT_CHARS]
    fields = with_fields(
        message="prompt", request_id=record.request_id, key_id=record.key_id, prompt=shown, prompt_chars=len(text)
    )
    logger.info("prompt request=%s chars=%d: %s", record.request_id, len(text), shown, extra=fields)


def note_slow_client(scope: Scope) -> None:
    """The connection of this request is about to be cut, because its client does not read."""
    record = scope.get("state", {}).get(_STATE_KEY)
    if isinstance(record, RequestRecord):
        record.outcome = SLOW_CLIENT


def _route(scope: Scope) -> str | None:
    """The template of the path, `/v1/models/{model_id}`; None where no route was found or reached."""
    template: str | None = getattr(scope.get("route"), "path_format", None)
    return template


@functools.lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


class RequestLog:
    """ASGI middleware: `x-request-id` and `date` on every response, a log line, a 500 for what nobody expected."""

    def __init__(self, app: ASGIApp, errors: RecentErrors, metrics: Metrics) -> None:
        self._app = app
        self._errors = errors
        self._metrics = metrics

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
                note_phases(record.phases())
                note(record.attributes())
                self._note_error(record, scope)
                if record.status:
                    self._metrics.note_answer(scope["method"], _route(scope), record.status)
                level = logging.DEBUG if scope["path"] in _QUIET_PATHS else logging.INFO
                if logger.isEnabledFor(level):
                    about = scope["method"], scope["path"]
                    logger.log(level, "%s", record.line(*about), extra=with_fields(**record.fields(*about)))

    def _note_error(self, record: RequestRecord, scope: Scope) -> None:
        code = record.code or scope["state"].get(ERROR_CODE_KEY, "")
        if code:
            path = quote(scope["path"])
            self._errors.note(record.status, code, scope["method"], path, record.request_id, record.key_id)

    async def _answer(self, error: Exception, record: RequestRecord, send: Send) -> None:
        record.fail(error)
        if not isinstance(error, MlxServeError):
            fields = with_fields(request_id=record.request_id, key_id=record.key_id)
            logger.error("request %s failed", record.request_id, exc_info=error, extra=fields)
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
