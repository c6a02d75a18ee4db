"""Against DNS rebinding: a page of another site must not reach a daemon that listens on loopback only.

Such a page reaches us under its own name, so the Host header of a request must be a name that only this
machine or its network answers to. Non-loopback binds are not checked: there any name may be right.
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlx_server.api.errors import ErrorReply

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".test")


def is_loopback(host: str) -> bool:
    """Whether listening on `host` means listening to this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local_name(header: str) -> bool:
    """Whether a Host header is an address, or a name that public DNS does not serve."""
    name = _without_port(header.strip().lower()).rstrip(".")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(_LOCAL_SUFFIXES) or (bool(name) and "." not in name)
    return address.is_loopback or address.is_private


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class HostGuard:
    """ASGI middleware that refuses foreign Host headers with a 403."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            if host and not is_local_name(host):
                message = "the Host header names another machine; this daemon answers local names only"
                reply = ErrorReply(403, message, "invalid_request_error", None, "foreign_host").response()
                await reply(scope, receive, send)
                return
        await self._app(scope, receive, send)
