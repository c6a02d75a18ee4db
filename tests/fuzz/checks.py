"""What must be true of every response, beside what schemathesis checks itself."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import jsonschema_rs
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import CHECKS, CheckFunction, load_all_checks

LEGAL_REFUSALS = (
    r"context_length_exceeded .*",
    r"\S+ min_tokens .*",
    r"\S+ top_logprobs .*needs 'logprobs'.*",
    r"\S+ logit_bias .*keyed by token ids.*",
    r"\S+ chat_template_kwargs\.(.|\n)* cannot be set from a request",
    r"\S+ messages\[\d+\]\.tool_calls\[\d+\]\.function\.arguments .*a JSON object written as a string.*",
    r"\S+ messages the model's chat template refuses(.|\n)*",
)
"""`code param message` of the 400s that a request may get although its schema is right: those the document names."""


def checks() -> list[CheckFunction]:
    """Ours, and those of schemathesis that are about one response."""
    load_all_checks()
    names = [
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
    ]
    ours: list[CheckFunction] = [no_server_error, a_refusal_has_its_reason, a_stream_is_whole]
    return [*ours, *(CHECKS.get_one(name) for name in names)]  # type: ignore[list-item]


def no_server_error(ctx: CheckContext, response: Response, case: Case) -> None:
    """The one 503 is that of a request that asked for less time than it took; it says when to come again."""
    if response.status_code < 500:
        return
    assert response.status_code == 503 and ran_out_of_time(case, response.json()), response.text
    assert "retry-after" in response.headers, "a 503 without Retry-After"


def ran_out_of_time(case: Case, reply: Any) -> bool:
    """Whether an error says that the answer was not complete in time, and the client had set one."""
    in_time = reply.get("error", {}).get("code") != "deadline_exceeded"
    return not in_time and "x-request-timeout" in case.headers


def a_refusal_has_its_reason(ctx: CheckContext, response: Response, case: Case) -> None:
    """What the document calls legal is refused for a documented reason only."""
    meta = case.meta
    if meta is None or meta.generation.mode is not GenerationMode.POSITIVE or response.status_code != 400:
        return
    error = response.json()["error"]
    about = f"{error['code']} {error['param']} {error['message']}"
    assert any(re.fullmatch(reason, about) for reason in LEGAL_REFUSALS), f"legal, and refused: {about}"


def a_stream_is_whole(ctx: CheckContext, response: Response, case: Case) -> None:
    """Every event is what the document says, and the last one is `[DONE]`, or the error of a time that ran out."""
    if not response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        return
    document = case.operation.schema.raw_schema
    events = [block for block in response.text.split("\n\n") if block and not block.startswith(":")]
    assert events, "a stream without an event"
    last = events[-1].removeprefix("data: ")
    assert last == "[DONE]" or ran_out_of_time(case, json.loads(last)), f"a stream that ends with {last}"
    validator = chunk_validator(json.dumps(document))
    for event in events[:-1]:
        validator.validate(json.loads(event.removeprefix("data: ")))


@cache
def chunk_validator(document: str) -> Any:
    """A validator of what a stream's events carry. document: the OpenAPI document as JSON."""
    schemas = json.loads(document)["components"]
    ref = "#/components/schemas/CreateChatCompletionStreamResponse"
    return jsonschema_rs.Draft202012Validator({"$ref": ref, "components": schemas})
