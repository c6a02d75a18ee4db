"""Against DNS rebinding: a page of another site must not reach the daemon under that site's name.

Such a page reaches us by a name that its owner controls, so the Host header of a request must be a name that cannot be
made to point elsewhere: a loopback name, this machine's own, one that the settings allow, or, where others may connect
at all, any address.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlx_server.api.errors import ErrorReply
from mlx_server.core.settings import Settings

CONTAINER_NAMES = frozenset({"host.docker.internal", "host.containers.internal"})
"""What a container calls the machine it runs on; its runtime answers for them, not the DNS."""
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{0,5})?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Whether listening on `host` means listening to this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_name(header: str) -> str | None:
    """The name or address in a Host header: lower case, no port, no trailing dot; None when it is no legal one."""
    match = _HOST.fullmatch(header.strip().lower())
    if match is None:
        return None
    return match["v6"] or match["name"].removesuffix(".")


def own_names() -> frozenset[str]:
    """The names of this machine, also as its network knows it without a DNS."""
    full = socket.gethostname().lower().rstrip(".")
    short = full.partition(".")[0]
    return frozenset({full, short, f"{short}.local"}) - {"", ".local"}


class HostGuard:
    """ASGI middleware that refuses foreign Host headers with a 403.

    Requests without one are those of HTTP/1.0, which no browser sends.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._any_address = not is_loopback(settings.host)
        self._names = own_names() | CONTAINER_NAMES | frozenset(settings.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            hosts = Headers(scope=scope).getlist("host")
            if len(hosts) > 1 or not all(self.allows(host) for host in hosts):
                message = "the Host header names another machine; --allowed-hosts can add names that are answered"
                reply = ErrorReply(403, message, "invalid_request_error", None, "foreign_host").response()
                await reply(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def allows(self, header: str) -> bool:
        """Whether a Host header is answered."""
        name = host_name(header)
        if name is None:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost" or name.endswith(".localhost") or name in self._names
        return self._any_address or address.is_loopback or name in self._names
