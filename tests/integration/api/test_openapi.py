"""The OpenAPI document says what the endpoints do: which there are, what they take, and what they answer."""

import json
from functools import cache
from typing import Any

import httpx2 as httpx
import jsonschema_rs
import pytest
import schemathesis
from fastapi import FastAPI
from starlette.routing import Route

from mlx_server.api.openai.types import ChatRequest
from mlx_server.api.openapi import document
from mlx_server.api.serving import ServingState
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, chat, events
from tests.integration.api.test_refusals import BAD_FIELDS

ALIASES = {"/chat/completions", "/models", "/models/{model_id}"}
BEYOND_A_SCHEMA = {"min_tokens", "top_logprobs", "logit_bias", "chat_template_kwargs"}
"""Fields whose legal values depend on other fields, on the vocabulary or on the template; the document says so."""


@cache
def validator(schema: str) -> Any:
    """Of one of the document's components."""
    about = {"$ref": f"#/components/schemas/{schema}", "components": document()["components"]}
    return jsonschema_rs.Draft202012Validator(about)


def promised(method: str, path: str, response: httpx.Response) -> dict[str, Any]:
    """What the document says of this response; fails where it says nothing."""
    answers = document()["paths"][path][method]["responses"]
    assert str(response.status_code) in answers, f"{response.status_code} is not documented"
    answer: dict[str, Any] = answers[str(response.status_code)]
    for name, header in answer.get("headers", {}).items():
        assert int(response.headers[name]) >= header["schema"]["minimum"]
    return answer


def check(method: str, path: str, response: httpx.Response) -> None:
    media_type = response.headers["content-type"].partition(";")[0]
    schema = promised(method, path, response)["content"][media_type]["schema"]
    validator(schema["$ref"].rpartition("/")[2]).validate(response.json())


async def test_the_document_is_openapi_and_served(client: httpx.AsyncClient) -> None:
    response = await client.get("/openapi.json")
    assert response.status_code == 200
    assert response.json() == json.loads(json.dumps(document()))
    assert response.json()["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(response.json()).validate()


async def test_the_document_is_guarded_as_everything_is(client: httpx.AsyncClient) -> None:
    assert (await client.get("/openapi.json", headers={"host": "evil.example"})).status_code == 403
    assert (await client.get("/openapi.json", headers={"origin": "http://evil.example"})).status_code == 403


def test_every_route_is_documented_and_no_other(app: FastAPI) -> None:
    served = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in served_routes(app)
        if not route.path.startswith("/dashboard")  # a page and its feed, not an API
        for method in (route.methods or set()) - {"HEAD"}
    }
    documented = {(path, method) for path, about in document()["paths"].items() for method in about}
    assert {(path, method) for path, method in served if path not in ALIASES} == documented | {("/openapi.json", "get")}


def served_routes(app: FastAPI) -> list[Route]:
    found: list[Route] = []
    waiting = list(app.routes)
    while waiting:
        route = waiting.pop()
        if isinstance(route, Route):
            found.append(route)
        else:
            waiting += route.original_router.routes  # type: ignore[attr-defined]
    return found


def test_every_field_that_is_honoured_is_documented() -> None:
    properties = document()["components"]["schemas"]["CreateChatCompletionRequest"]["properties"]
    assert set(ChatRequest.model_fields) <= set(properties)
    assert all("description" in properties[name] for name in ChatRequest.model_fields)


@pytest.mark.parametrize(
    ("fields", "field"), [(fields, field) for fields, field, _ in BAD_FIELDS], ids=lambda value: str(value)[:40]
)
def test_what_is_refused_is_not_legal(fields: dict[str, Any], field: str) -> None:
    legal = validator("CreateChatCompletionRequest").is_valid(chat() | fields)
    assert not legal or field.partition(".")[0] in BEYOND_A_SCHEMA


LEGAL: list[dict[str, Any]] = [
    {},
    dict.fromkeys(set(ChatRequest.model_fields) - {"messages"}),
    {"max_tokens": 5.0, "n": 2.0, "seed": -3.0, "top_k": 10**30, "priority": 4},
    {"stop": "x", "logit_bias": {"5": -100}, "logprobs": True, "top_logprobs": 20},
    {"stop": ["x"] * 16, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": None}},
    {"tools": [], "functions": [], "tool_choice": "auto", "function_call": "none", "modalities": ["text"]},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": None}},
    {"user": "u", "metadata": {"a": 1}, "nobody knows": [{}], "prediction": 5},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a", "more": 1}]}, *chat()["messages"]]},
    {
        "messages": [
            {"role": "user", "content": "a", "name": "b", "tool_calls": []},
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "d"},
            {"role": "assistant", "content": None, "refusal": "no", "audio": None},
            {"role": "user", "content": ""},
        ]
    },
]


@pytest.mark.parametrize("fields", LEGAL, ids=lambda fields: str(fields)[:60])
async def test_what_is_legal_is_answered_as_documented(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    body = chat() | fields
    validator("CreateChatCompletionRequest").validate(body)
    response = await client.post(URL, json=body)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        check_events(response)
    else:
        check("post", URL, response)


def check_events(response: httpx.Response) -> None:
    assert "text/event-stream" in promised("post", URL, response)["content"]
    *chunks, last = events(response.text)
    assert last == "DONE"
    for chunk in chunks:
        validator("CreateChatCompletionStreamResponse").validate(chunk)


async def test_answers_with_everything(client: httpx.AsyncClient) -> None:
    fields = {"n": 3, "logprobs": True, "top_logprobs": 4}
    check("post", URL, await client.post(URL, json=chat(**fields)))
    options = {"include_usage": True, "continuous_usage_stats": True}
    check_events(await client.post(URL, json=chat(stream=True, stream_options=options, **fields)))


async def test_the_other_answers(client: httpx.AsyncClient, serving: ServingState) -> None:
    for path in ("/v1/models", "/health", "/ready"):
        check("get", path, await client.get(path))
    for name in ("default", "org%2Fsmall", "nobody"):
        check("get", "/v1/models/{model_id}", await client.get(f"/v1/models/{name}"))
    serving.model = None
    for path in ("/v1/models", "/health", "/ready"):
        check("get", path, await client.get(path))


async def test_refusals_are_as_documented(client: httpx.AsyncClient, serving: ServingState) -> None:
    body = json.dumps(chat()).encode()
    typed = {"content-type": "application/json"}
    refused = [
        (400, await client.post(URL, json=chat(n=0))),
        (400, await client.post(URL, json=chat(), headers={"x-request-timeout": "soon"})),
        (403, await client.post(URL, json=chat(), headers={"host": "evil.example"})),
        (404, await client.post(URL, json=chat(model="nobody"))),
        (413, await client.post(URL, json=chat("x" * 70_000))),
        (415, await client.post(URL, content=body, headers={"content-type": "text/plain"})),
        (415, await client.post(URL, content=body, headers=typed | {"content-encoding": "gzip"})),
    ]
    serving.model = None
    refused.append((503, await client.post(URL, json=chat())))
    for status, response in refused:
        assert response.status_code == status
        check("post", URL, response)


async def test_failures_of_the_engine_are_as_documented(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.full = True
    full = await client.post(URL, json=chat())
    engine.full, engine.fail_after = False, 0
    failed = await client.post(URL, json=chat(stream=True))
    assert (full.status_code, failed.status_code) == (429, 500)
    for response in (full, failed):
        check("post", URL, response)


async def test_a_stream_that_fails_ends_with_the_documented_error(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.fail_after = 1
    *chunks, last = events((await client.post(URL, json=chat(stream=True))).text)
    assert chunks
    validator("ErrorResponse").validate(last)
