"""The ASGI application."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mlx_server import __version__
from mlx_server.api.errors import handle_http_exception, handle_known_error
from mlx_server.api.host_guard import HostGuard, is_loopback
from mlx_server.api.openai import chat, models
from mlx_server.api.request_log import RequestLog
from mlx_server.api.serving import ServingState, serving_of
from mlx_server.core.errors import EngineDeadError, EngineNotReadyError, MlxServeError


def create_app(serving: ServingState) -> FastAPI:
    """The endpoints over `serving`, which the caller fills in when the model is ready."""
    app = FastAPI(title="mlx-serve", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.serving = serving
    app.add_exception_handler(MlxServeError, handle_known_error)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.include_router(chat.router)
    app.include_router(models.router)
    app.add_api_route("/health", health, methods=["GET"], response_model=None)
    if is_loopback(serving.settings.host):
        app.add_middleware(HostGuard)
    app.add_middleware(RequestLog)  # the last added is the outermost
    return app


async def health(request: Request) -> Response:
    """200 while the model answers, otherwise 503 and why not."""
    serving = serving_of(request)
    about: dict[str, Any] = {"status": "ok", "model": serving.name, "version": __version__}
    try:
        model = serving.loaded()
        about["max_model_len"] = model.info.max_model_len
        about["stats"] = await model.engine.stats()
    except EngineNotReadyError:
        about |= {"status": "loading", "stage": serving.stage, "progress": round(serving.progress, 3)}
    except EngineDeadError as error:
        about |= {"status": "dead", "reason": str(error)}
    about["uptime_s"] = round(time.monotonic() - serving.started_s, 3)
    status = 200 if about["status"] == "ok" else 503
    return Response(msgspec.json.encode(about), status, media_type="application/json")
