"""Wire types of the OpenAI chat API: the plain fields. Messages are read by `messages.py`.

Each description completes "must be ..." in the message of a refusal.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mlx_server.core.errors import RequestError

MAX_N = 16
MAX_STOPS = 16
MAX_BIASES = 4096
MAX_STOP_CHARS = 1000
MAX_TOP_LOGPROBS = 20
_INT64 = 1 << 63

Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


def _allow_nulls(schema: dict[str, Any]) -> None:
    """A null is absent, so the document allows it wherever a field may be absent."""
    for name, field in schema["properties"].items():
        takes_null = any(choice.get("type") == "null" for choice in field.get("anyOf", [field]))
        if name not in schema.get("required", ()) and not takes_null:
            description = field.pop("description", "")
            schema["properties"][name] = {"description": description, "anyOf": [field, {"type": "null"}]}


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, json_schema_extra=_allow_nulls)


class StreamOptions(_Wire):
    include_usage: bool = Field(False, description="true or false")
    continuous_usage_stats: bool = Field(False, description="true or false")


class ChatRequest(_Wire):
    """The fields of POST /v1/chat/completions that are honoured, without nulls."""

    messages: list[Any] = Field(min_length=1, description="a list of at least one message")
    model: str | None = Field(None, description="the name of a model")
    stream: bool = Field(False, description="true or false")
    stream_options: StreamOptions = Field(StreamOptions(), description="an object")
    max_tokens: int | None = Field(None, ge=1, description="an integer of at least 1")
    max_completion_tokens: int | None = Field(None, ge=1, description="an integer of at least 1")
    min_tokens: int = Field(0, ge=0, description="an integer of at least 0, and at most max_tokens")
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    top_k: int | None = Field(None, ge=-1, description="an integer of at least 1, or 0 or -1 for off")
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, description="a number from 0.01 to 100 (1 is off)")
    presence_penalty: Penalty = Field(0.0, description="a number from -2 to 2")
    frequency_penalty: Penalty = Field(0.0, description="a number from -2 to 2")
    logit_bias: dict[str, Any] = Field({}, description="an object of token ids to numbers from -100 to 100")
    seed: int | None = Field(None, ge=-_INT64, lt=2 * _INT64, description="an integer from -2^63 to 2^64 - 1")
    stop: Any = Field((), description="a string or a list of strings")
    n: int = Field(1, ge=1, le=MAX_N, description=f"an integer from 1 to {MAX_N}")
    logprobs: bool = Field(False, description="true or false")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description=f"an integer from 0 to {MAX_TOP_LOGPROBS}"
    )
    ignore_eos: bool = Field(False, description="true or false")
    priority: Literal["high", "normal", "low"] | int | None = Field(
        None, description="'high', 'normal' or 'low', or an integer, above 0 for low; it can only lower the key's tier"
    )
    reasoning_effort: str | None = Field(None, max_length=40, description="a word such as 'low' or 'high'")
    chat_template_kwargs: dict[str, Any] = Field({}, description="an object")


def parse_chat_request(raw: dict[str, Any]) -> ChatRequest:
    """Validate; nulls count as absent. Raises `RequestError` with the field and what it must be."""
    given = {name: _whole_number(value) for name, value in without_nulls(raw).items()}
    options = given.get("stream_options")
    if isinstance(options, dict):
        given["stream_options"] = without_nulls(options)
    try:
        return ChatRequest.model_validate(given)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_context=False)[0]) from None


def without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """A shallow copy without the keys whose value is None."""
    return {key: item for key, item in value.items() if item is not None}


def _whole_number(value: Any) -> Any:
    """JSON has one kind of number: 8.0 is 8, in JSON Schema too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def shown(value: Any) -> str:
    """A value as a refusal shows it: short, and never a whole structure."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 70:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def must_be(field: str, legal: str, value: Any) -> RequestError:
    """The refusal of a value: the field, what is legal, what came."""
    return RequestError(f"'{field}' must be {legal}, not {shown(value)}", field, "invalid_value")


def _explain(error: Any) -> RequestError:
    name = str(error["loc"][0])
    about = ChatRequest.model_fields[name]
    if error["type"] == "missing":
        return RequestError(f"'{name}' is required: {about.description}", name, "missing_required_parameter")
    if name == "stream_options" and len(error["loc"]) > 1:
        return must_be(f"stream_options.{error['loc'][1]}", "true or false", error["input"])
    return must_be(name, about.description or "something else", error["input"])
