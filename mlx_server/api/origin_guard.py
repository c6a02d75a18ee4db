"""Against pages of other sites: a browser says on whose behalf it asks, and only those that are allowed are answered.

Programs send no Origin, and are not asked for one. `Sec-Fetch-*` says nothing here: Node sends it too.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from mlx_server.api.errors import ErrorReply
from mlx_server.core.settings import Settings


class OriginGuard:
    """ASGI middleware that refuses foreign origins with a 403, their preflights too.

    It stands behind `HostGuard`, so a Host that equals the origin's is one of ours. Origins that the settings allow get
    the headers of CORS; nobody else gets one.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._allowed = frozenset(settings.cors_origins)
        self._cors = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = Headers(scope=scope).getlist("origin") if scope["type"] == "http" else []
        if not origins:
            await self._app(scope, receive, send)
        elif len(origins) == 1 and origins[0] in self._allowed:
            await self._cors(scope, receive, send)
        elif len(origins) == 1 and origins[0].lower() == _own_origin(scope):
            await self._app(scope, receive, send)
        else:
            message = "pages of this origin may not use the daemon; --cors-origins can allow them"
            reply = ErrorReply(403, message, "invalid_request_error", None, "foreign_origin").response()
            await reply(scope, receive, send)


def _own_origin(scope: Scope) -> str:
    """The origin of pages that the daemon itself would serve under the name it is asked by."""
    return f"{scope['scheme']}://{Headers(scope=scope).get('host', '')}".lower()
