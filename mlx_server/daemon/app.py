"""The ASGI application."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from mlx_server import __version__
from mlx_server.api import dashboard, health, metrics, openapi
from mlx_server.api.access import Access
from mlx_server.api.errors import handle_http_exception, handle_known_error
from mlx_server.api.host_guard import HostGuard
from mlx_server.api.live.feed import Feed
from mlx_server.api.openai import chat, models
from mlx_server.api.origin_guard import OriginGuard
from mlx_server.api.request_log import RequestLog
from mlx_server.api.serving import ServingState
from mlx_server.core.errors import MlxServeError


def create_app(serving: ServingState) -> FastAPI:
    """The endpoints over `serving`, which the caller fills in when the model is ready."""
    app = FastAPI(
        title="mlx-serve",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # they quote queries and errors
    )
    app.state.serving = serving
    app.state.feed = Feed(serving)
    app.add_exception_handler(MlxServeError, handle_known_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.include_router(chat.router)
    app.include_router(models.router)
    app.include_router(openapi.router)
    app.include_router(health.router)
    app.include_router(metrics.router)
    app.include_router(dashboard.router)
    app.add_middleware(Access, settings=serving.settings)  # the last added is the outermost
    app.add_middleware(OriginGuard, settings=serving.settings)
    app.add_middleware(HostGuard, settings=serving.settings)
    app.add_middleware(RequestLog, errors=serving.observed.errors, metrics=serving.metrics)
    return app
