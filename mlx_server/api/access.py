"""Who may come in: API keys, and how much each may ask for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mlx_server.api.dashboard_files import PAGE_PATHS
from mlx_server.api.errors import ErrorReply
from mlx_server.api.host_guard import is_loopback
from mlx_server.api.request_log import record_of
from mlx_server.core.errors import SettingsError
from mlx_server.core.messages import Priority
from mlx_server.core.settings import Settings
from mlx_server.services.key_limits import KeyLimits
from mlx_server.services.key_ring import KeyRing
from mlx_server.services.keys import ApiKey

OPEN_PATHS = frozenset({"/health", "/ready"}) | PAGE_PATHS
"""Answered without a key: with no more than a status, since whoever supervises the daemon has none, and the page of the
dashboard, which holds no data and asks for a key."""
_UNLIMITED_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_STATE_KEY = "mlx_serve_caller"


@dataclass(slots=True, frozen=True)
class Caller:
    """On whose behalf a request is. key_id: empty where no key is needed. tier: the most important it can be."""

    key_id: str = ""
    tier: Priority = Priority.NORMAL


def check_exposure(settings: Settings) -> None:
    """Raise `SettingsError` for keys that cannot be trusted, and for a port open to others without any key."""
    ring = KeyRing.of(settings, always=False)
    ring.check()
    if ring.is_empty and not is_loopback(settings.host):
        raise SettingsError(
            f"host = {settings.host!r} lets other machines in, and there is no API key; make one with "
            "'mlx-serve keys add NAME', or listen on 127.0.0.1"
        )


def caller_of(request: Request) -> Caller:
    """Whose request this is. Raises `TypeError` where `Access` has let nobody in."""
    caller = request.scope.get("state", {}).get(_STATE_KEY)
    if not isinstance(caller, Caller):
        raise TypeError("the request has no caller")
    return caller


def is_known(request: Request) -> bool:
    """Whether the caller may see more than a status: false only at `OPEN_PATHS`, without a key that is needed."""
    return isinstance(request.scope.get("state", {}).get(_STATE_KEY), Caller)


class Access:
    """ASGI middleware: a 401 without a key where one is needed, a 429 beyond the key's limits.

    The keys are those of the file at the moment of the request. Without any, on a loopback address, whatever is sent as
    a key is accepted: many clients cannot send none.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._ring = KeyRing.of(settings, always=not is_loopback(settings.host))
        self._limits = KeyLimits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._ring.look()
        presented = _presented(Headers(scope=scope))
        key = next((key for text in presented if (key := self._ring.find(text)) is not None), None)
        state = scope.setdefault("state", {})
        if key is not None:
            state[_STATE_KEY] = Caller(key.id, key.priority)
            record_of(Request(scope)).key_id = key.id
        elif not self._ring.required:
            state[_STATE_KEY] = Caller()
        elif scope["path"] not in OPEN_PATHS:
            await _refusal(bool(presented)).response()(scope, receive, send)
            return
        with self._counted(key, scope["method"]) as refusal:
            answer = self._app if refusal is None else refusal.response()
            await answer(scope, receive, send)

    @contextmanager
    def _counted(self, key: ApiKey | None, method: str) -> Iterator[ErrorReply | None]:
        """Counts a request until its answer is complete; yields the refusal of one too many."""
        if key is None or method in _UNLIMITED_METHODS:
            yield None
            return
        over = self._limits.enter(key, time.monotonic())
        if over is not None:
            yield ErrorReply(429, over.message, "rate_limit_error", None, "rate_limit_exceeded", over.retry_after_s)
            return
        try:
            yield None
        finally:
            self._limits.leave(key)


def _presented(headers: Headers) -> list[str]:
    """Every key that the request brings, as `Authorization: Bearer` and as `x-api-key`."""
    found = headers.getlist("x-api-key")
    for value in headers.getlist("authorization"):
        scheme, _, text = value.partition(" ")
        if scheme.lower() == "bearer":
            found.append(text)
    return [text.strip() for text in found if text.strip()]


def _refusal(presented: bool) -> ErrorReply:
    if presented:
        message = "the API key is not valid"
    else:
        message = "an API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
    return ErrorReply(401, message, "invalid_request_error", None, "invalid_api_key")
