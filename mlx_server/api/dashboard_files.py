"""The files that the dashboard's page is made of. They hold no data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.responses import Response

from mlx_server.api.errors import RefusedError

FOLDER = Path(__file__).parents[1] / "dashboard"
_MEDIA_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "playground.js": "text/javascript; charset=utf-8",
    "stream.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
PAGE_PATHS = frozenset({"/dashboard", "/dashboard/"} | {f"/dashboard/{name}" for name in _MEDIA_TYPES})


def file_response(name: str) -> Response:
    """The file of that name. It is compared, never used as a path. Raises a 404."""
    if name not in _MEDIA_TYPES:
        raise RefusedError(404, "there is no such file", code="not_found")
    return Response(_content(name), headers=_HEADERS, media_type=_MEDIA_TYPES[name])


@cache
def _content(name: str) -> bytes:
    return (FOLDER / name).read_bytes()
