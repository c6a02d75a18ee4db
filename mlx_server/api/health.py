"""GET /health: is the daemon alive; GET /ready: would a request sent now be answered."""

from __future__ import annotations

import contextlib
import os
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
from mlx_server.core.messages import MemoryLevel
from mlx_server.services.memory.reading import MemoryReading

RETRY_S = 2
"""After which to ask again whether the daemon is ready."""

router = APIRouter()


@router.get("/health", response_model=None)
async def health(request: Request) -> Response:
    """200 whenever the daemon answers at all, with the figures for callers that may see them."""
    serving = serving_of(request)
    about = state_of(serving)
    if is_known(request):
        about |= {"model": serving.name, "version": __version__, "pid": os.getpid()}
        about["uptime_s"] = round(time.monotonic() - serving.started_s, 3)
        if serving.memory is not None:
            about["memory"] = _memory(serving.memory, serving.memory_level)
        if serving.model is not None:
            about["max_model_len"] = serving.model.info.max_model_len
            with contextlib.suppress(EngineNotReadyError, EngineDeadError):  # the status says it
                about["stats"] = await serving.model.engine.stats()
    else:
        about = {"status": about["status"]}
    return Response(msgspec.json.encode(about), media_type="application/json")


def _memory(reading: MemoryReading, level: MemoryLevel) -> dict[str, Any]:
    """What is known of the reading, with levels by name and the share used in percent."""
    known = {name: value for name, value in msgspec.structs.asdict(reading).items() if value is not None}
    if reading.os_level is not None:
        known["os_level"] = reading.os_level.name.lower()
    return {"level": level.name.lower(), "used_percent": round(reading.used_percent, 1), **known}


@router.get("/ready", response_model=None)
async def ready(request: Request) -> Response:
    """200 when a request sent now would be answered; otherwise 503 with Retry-After, and why not."""
    about = state_of(serving_of(request))
    is_ready = about["status"] == "ok"
    if not is_known(request):
        about = {"status": about["status"]}
    headers = {} if is_ready else {"retry-after": str(RETRY_S)}
    return Response(msgspec.json.encode(about), 200 if is_ready else 503, headers, media_type="application/json")


def state_of(serving: ServingState) -> dict[str, Any]:
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
