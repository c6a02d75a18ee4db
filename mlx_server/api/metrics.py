"""GET /metrics: for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mlx_server.api.serving import LoadedModel, serving_of
from mlx_server.core.errors import EngineDeadError, EngineNotReadyError
from mlx_server.telemetry.engine_metrics import EngineFigures

router = APIRouter()


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """Prometheus' text format; OpenMetrics for a client that accepts it."""
    serving = serving_of(request)
    engine = await _figures(serving.model) if serving.model is not None else None
    body, media_type = serving.metrics.render(engine, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": media_type})


async def _figures(model: LoadedModel) -> EngineFigures | None:
    try:
        stats = await model.engine.stats()
        return EngineFigures(model.info, stats, is_up=not model.engine.is_restarting)
    except (EngineNotReadyError, EngineDeadError):
        return None
