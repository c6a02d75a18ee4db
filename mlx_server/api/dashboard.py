"""GET /dashboard: a page that shows what the daemon does, and the feed behind it.

The page and what belongs to it are files without data, so they need no key; the feed and the cancelling do. Neither is
part of the OpenAI API, so `openapi.py` does not list them.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mlx_server.api.access import caller_of
from mlx_server.api.dashboard_files import file_response
from mlx_server.api.errors import RefusedError
from mlx_server.api.live.feed import Feed, sees
from mlx_server.api.request_log import record_of
from mlx_server.api.serving import serving_of
from mlx_server.api.sse import EventStream

_OTHER_SITES = frozenset({"cross-site", "same-site"})

router = APIRouter(include_in_schema=False)


@router.get("/dashboard", response_model=None)
async def page() -> Response:
    """The page itself."""
    return file_response("index.html")


@router.get("/dashboard/events", response_model=None)
async def events(request: Request) -> Response:
    """The facts as server-sent events, once a second."""
    _check_same_origin(request)
    stream = EventStream(feed_of(request).watch(caller_of(request)), record_of(request))
    stream.headers["cross-origin-resource-policy"] = "same-origin"
    return stream


@router.post("/dashboard/cancel/{request_id}", response_model=None)
async def cancel(request: Request, request_id: str) -> Response:
    """End a request that is being answered. 204; 404 when there is none, or none that the caller may see."""
    _check_same_origin(request)
    requests = serving_of(request).observed.requests
    found = requests.get(request_id)
    if found is None or not sees(caller_of(request), found.key_id):
        raise RefusedError(404, "no such request is being answered", code="not_found")
    requests.cancel(found)
    return Response(status_code=204)


@router.get("/dashboard/{name}", response_model=None)
async def asset(name: str) -> Response:
    """What the page is made of. The name is compared, never used as a path."""
    return file_response(name)


def feed_of(request: Request) -> Feed:
    """The feed that `create_app` put on the application."""
    feed = request.app.state.feed
    if not isinstance(feed, Feed):
        raise TypeError("the application has no Feed")
    return feed


def _check_same_origin(request: Request) -> None:
    """Raise a 403 for pages of other sites, those too whose origin may use the API."""
    if request.headers.get("sec-fetch-site") in _OTHER_SITES:
        raise RefusedError(403, "the dashboard answers its own page only", code="foreign_origin")
