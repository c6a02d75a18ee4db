"""GET /v1/models."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mlx_server.api.serving import ServingState, serving_of

router = APIRouter()


@router.get("/v1/models", response_model=None)
@router.get("/models", response_model=None)
async def list_models(request: Request) -> Response:
    """The one model that is served; while it loads, too."""
    return _reply({"object": "list", "data": [_describe(serving_of(request))]})


@router.get("/v1/models/{model_id:path}", response_model=None)
@router.get("/models/{model_id:path}", response_model=None)
async def retrieve_model(request: Request, model_id: str) -> Response:
    """The model under any of its names. The name is compared, never used as a path."""
    serving = serving_of(request)
    serving.check_name(model_id)
    return _reply(_describe(serving))


def _describe(serving: ServingState) -> dict[str, Any]:
    about: dict[str, Any] = {
        "id": serving.name,
        "object": "model",
        "created": serving.created_s,
        "owned_by": "mlx-serve",
    }
    if serving.model is not None:
        about["max_model_len"] = serving.model.info.max_model_len
    return about


def _reply(value: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
