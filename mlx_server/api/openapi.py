"""GET /openapi.json: what the endpoints take and answer.

Written out here rather than collected by FastAPI, since the handlers read bodies by hand: their errors have the API's
own shape, and a document of FastAPI's would promise others. `tests/integration/api/test_openapi.py` holds it to the
routes and to real answers, `tests/fuzz` to whatever schemathesis makes of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from mlx_server import __version__
from mlx_server.api.deadline import HEADER
from mlx_server.api.openai.schemas import DOCUMENTED

router = APIRouter()

_REFS = "#/components/schemas/{model}"

_MEANINGS = {
    400: "A field is wrong or cannot be honoured, the prompt is too long, or the dashboard cancelled the request.",
    401: "An API key is needed, and the request has none that is valid.",
    403: "The Host header names another machine, or the Origin is one that is not allowed.",
    404: "There is no such model, or no such path.",
    408: "The body did not arrive in time.",
    413: "The body is too large, or slow to parse for its size.",
    415: "The body is not JSON, or it is compressed.",
    429: "The queue is full, or the API key has reached its limits.",
    500: "This request failed inside the engine; others are not affected.",
    503: "The model is loading, the daemon is overloaded or stopping, or the answer was not complete in time.",
}
_RETRY_AFTER = {
    "Retry-After": {"description": "seconds", "required": True, "schema": {"type": "integer", "minimum": 1}},
}
_REQUEST_TIMEOUT = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "Seconds that the request may take, waiting included; at most `request_timeout_s`.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
_MODEL_ID = {
    "name": "model_id",
    "in": "path",
    "required": True,
    "description": "The served name, the underlying id, or `default`.",
    "schema": {"type": "string", "minLength": 1},
}
_SEVERAL_REASONS = """
A 400 may have reasons beyond this schema: a prompt longer than the context, `min_tokens` above `max_tokens`,
`top_logprobs` without `logprobs`, a `logit_bias` of a token outside of the vocabulary, arguments of a tool call that
are no JSON object, names in `chat_template_kwargs` that are not for requests, and messages that the model's chat
template refuses.
"""
_STREAM = """
Where `stream` is true: server-sent events, the last of which is `[DONE]`. A failure after the first event is an event
with an `ErrorResponse`, and there is no `[DONE]`.
"""


@router.get("/openapi.json", include_in_schema=False, response_model=None)
async def openapi_document(request: Request) -> Response:
    """The document, the same for every client."""
    return Response(_encoded(), media_type="application/json")


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    _, schemas = models_json_schema([(model, "validation") for model in DOCUMENTED], ref_template=_REFS)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlx-serve", "version": __version__},
        "paths": {
            "/v1/chat/completions": {"post": _chat()},
            "/v1/models": {"get": _get("List the models", "ListModelsResponse", 401, 403)},
            "/v1/models/{model_id}": {
                "get": _get("Describe a model", "Model", 401, 403, 404) | {"parameters": [_MODEL_ID]}
            },
            "/metrics": {"get": _metrics()},
            "/health": {"get": _state("Whether the daemon is alive, and its figures")},
            "/ready": {"get": _state("Whether a request sent now would be answered", 503)},
        },
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"header": []}, {}],
    }


def _chat() -> dict[str, Any]:
    answer = {
        "description": "The answer." + _STREAM,
        "content": {
            **_json("CreateChatCompletionResponse"),
            "text/event-stream": {"schema": _event()},
        },
    }
    return {
        "summary": "Answer a chat",
        "description": _SEVERAL_REASONS,
        "operationId": "createChatCompletion",
        "parameters": [_REQUEST_TIMEOUT],
        "requestBody": {"required": True, "content": _json("CreateChatCompletionRequest")},
        "responses": {"200": answer, **_refusals(400, 401, 403, 404, 408, 413, 415, 429, 500, 503)},
    }


def _event() -> dict[str, Any]:
    """One event of a stream, as OpenAPI describes them."""
    data = [_ref("CreateChatCompletionStreamResponse"), _ref("ErrorResponse")]
    carried = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"oneOf": data}}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, carried]}},
    }


def _get(summary: str, model: str, *refusals: int) -> dict[str, Any]:
    answer = {"description": "OK", "content": _json(model)}
    return {"summary": summary, "responses": {"200": answer, **_refusals(*refusals)}}


def _metrics() -> dict[str, Any]:
    formats = {
        "text/plain": {"schema": {"type": "string"}},
        "application/openmetrics-text": {"schema": {"type": "string"}},
    }
    answer = {
        "description": "Prometheus' text format, or OpenMetrics for a client that accepts it.",
        "content": formats,
    }
    return {"summary": "Figures for Prometheus", "responses": {"200": answer, **_refusals(401, 403)}}


def _state(summary: str, *others: int) -> dict[str, Any]:
    content = _json("ServerState")
    denials = {str(status): _refusal(status) | {"content": content} for status in others}
    answer = {"description": "Yes.", "content": content}
    return {"summary": summary, "security": [{}], "responses": {"200": answer, **denials, **_refusals(403)}}


def _refusals(*statuses: int) -> dict[str, Any]:
    return {str(status): _refusal(status) for status in statuses}


def _refusal(status: int) -> dict[str, Any]:
    reply: dict[str, Any] = {"description": _MEANINGS[status], "content": _json("ErrorResponse")}
    return reply | {"headers": _RETRY_AFTER} if status in (429, 503) else reply


def _json(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(model)}}


def _ref(model: str) -> dict[str, Any]:
    return {"$ref": _REFS.format(model=model)}
