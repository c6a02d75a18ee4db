"""GET /health: is the daemon alive; GET /ready: would a request sent now be answered."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mlx_server import __version__
from mlx_server.api.access import is_known
from mlx_server.api.serving import ServingState, serving_of
from mlx_server.core.errors import EngineDeadError, EngineNotReadyError

RETRY_S = 2
"""After which to ask again whether the daemon is ready."""

router = APIRouter()


@router.get("/health", response_model=None)
async def health(request: Request) -> Response:
    """200 whenever the daemon answers at all, with the figures for callers that may see them."""
    serving = serving_of(request)
    about = _state(serving)
    if is_known(request):
        about |= {"model": serving.name, "version": __version__}
        about["uptime_s"] = round(time.monotonic() - serving.started_s, 3)
        if serving.model is not None:
            about["max_model_len"] = serving.model.info.max_model_len
            with contextlib.suppress(EngineNotReadyError, EngineDeadError):  # the status says it
                about["stats"] = await serving.model.engine.stats()
    else:
        about = {"status": about["status"]}
    return Response(msgspec.json.encode(about), media_type="application/json")


@router.get("/ready", response_model=None)
async def ready(request: Request) -> Response:
    """200 when a request sent now would be answered; otherwise 503 with Retry-After, and why not."""
    about = _state(serving_of(request))
    is_ready = about["status"] == "ok"
    if not is_known(request):
        about = {"status": about["status"]}
    headers = {} if is_ready else {"retry-after": str(RETRY_S)}
    return Response(msgspec.json.encode(about), 200 if is_ready else 503, headers, media_type="application/json")


def _state(serving: ServingState) -> dict[str, Any]:
    """status: 'ok', 'loading', 'restarting', 'draining' or 'failed'; unless 'ok', also the reason."""
    if serving.draining:
        return {"status": "draining", "reason": "the daemon is shutting down"}
    if serving.model is None:
        reason, progress = str(EngineNotReadyError()), round(serving.progress, 3)
        return {"status": "loading", "reason": reason, "stage": serving.stage, "progress": progress}
    try:
        serving.loaded()
    except EngineNotReadyError as error:
        return {"status": "restarting", "reason": str(error)}
    except EngineDeadError as error:
        return {"status": "failed", "reason": str(error)}
    if serving.model.engine.is_restarting:
        return {"status": "restarting", "reason": "the engine is being restarted; requests wait for it"}
    return {"status": "ok"}
