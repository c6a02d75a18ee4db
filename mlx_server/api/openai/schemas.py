"""The request and the answers of the OpenAI dialect, as the OpenAPI document shows them.

Nothing is parsed or written with these types: `types.py` and `messages.py` read requests, `wire.py` writes answers.
`test_openapi.py` and `tests/fuzz` hold both sides to them. Names are those of OpenAI's own document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mlx_server.api.openai.types import MAX_BIASES, MAX_STOP_CHARS, MAX_STOPS, ChatRequest

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenKey = Annotated[str, Field(pattern="^[0-9]{1,12}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Nothing = Annotated[list[Any], Field(max_length=0)]
NO_TOOLS = "not supported yet: absent or empty"


class _Part(BaseModel):
    type: str


class TextPart(_Part):
    """A part of a message's content; parts are joined by newlines."""

    type: Literal["text"]
    text: str


class RefusalPart(_Part):
    """What an assistant said in refusal."""

    type: Literal["refusal"]
    refusal: str


Content = str | list[TextPart | RefusalPart]


class FunctionCall(BaseModel):
    """A function that the model called. arguments: a JSON object, also written as a string."""

    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(BaseModel):
    """One entry of an assistant message's `tool_calls`."""

    id: str | None = None
    function: FunctionCall


class _Message(BaseModel):
    """What all roles share. `function_call` and `audio` are not supported."""

    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    function_call: None = None
    audio: None = None


class InputMessage(_Message):
    """A message that somebody sent to the model. `developer` is the same as `system`."""

    role: Literal["system", "developer", "user", "tool"]
    content: Content
    tool_calls: Nothing | None = None


class AssistantMessage(_Message):
    """A message that the model wrote; `refusal` stands in for absent content."""

    role: Literal["assistant"]
    content: Content | None = None
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = None


class ResponseFormat(BaseModel):
    """Only text is supported."""

    type: Literal["text"] | None = None


class CreateChatCompletionRequest(ChatRequest):
    """Unknown fields are ignored, an explicit null means absent."""

    messages: list[InputMessage | AssistantMessage] = Field(min_length=1, description="the chat so far, oldest first")
    logit_bias: dict[TokenKey, Bias] = Field(
        {},
        max_length=MAX_BIASES,
        description="token ids below the size of the vocabulary, to what is added",
        json_schema_extra={"additionalProperties": False},
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = Field(
        [], description="where to end the answer; never delivered"
    )
    tools: Nothing | None = Field(None, description=NO_TOOLS)
    functions: Nothing | None = Field(None, description=NO_TOOLS)
    tool_choice: Literal["none", "auto"] | None = None
    function_call: Literal["none", "auto"] | None = None
    response_format: ResponseFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    audio: None = Field(None, description="not supported")
    web_search_options: None = Field(None, description="not supported")


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PromptTokensDetails(_Answer):
    cached_tokens: int = Field(ge=0, description="prompt tokens that were not computed again")


class CompletionUsage(_Answer):
    prompt_tokens: int = Field(ge=1)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=1)
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(_Answer):
    token: str
    logprob: float = Field(le=0.001, description="natural logarithm, of the model's own distribution")
    bytes: list[Annotated[int, Field(ge=0, le=255)]]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(_Answer):
    content: list[TokenLogprob]
    refusal: None


class ResponseMessage(_Answer):
    role: Literal["assistant"]
    content: str
    refusal: None


class Choice(_Answer):
    index: int = Field(ge=0)
    message: ResponseMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length"]


class _Completion(_Answer):
    id: str
    created: int = Field(description="seconds since 1970")
    model: str
    system_fingerprint: None


class CreateChatCompletionResponse(_Completion):
    """The whole answer."""

    object: Literal["chat.completion"]
    choices: list[Choice]
    usage: CompletionUsage


class StreamDelta(_Answer):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    refusal: None = None


class StreamChoice(_Answer):
    index: int = Field(ge=0)
    delta: StreamDelta
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CreateChatCompletionStreamResponse(_Completion):
    """The data of one event. `usage` is there when `stream_options` asks for it."""

    object: Literal["chat.completion.chunk"]
    choices: list[StreamChoice]
    usage: CompletionUsage | None = None


class Model(_Answer):
    """A model that is served. max_model_len: tokens, once it is loaded."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None = None


class ListModelsResponse(_Answer):
    object: Literal["list"]
    data: list[Model]


class Error(_Answer):
    message: str = Field(min_length=1)
    type: Literal[
        "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"
    ]
    param: str | None = Field(description="path of the field that is at fault")
    code: str | None


class ErrorResponse(_Answer):
    """Every status from 400 on, and the data of the last event of a stream that fails."""

    error: Error


class ServerState(BaseModel):
    """What `/health` and `/ready` say. Without an API key that is needed it is the status alone."""

    status: Literal["ok", "loading", "restarting", "draining", "failed"]
    reason: str | None = None


DOCUMENTED: tuple[type[BaseModel], ...] = (
    CreateChatCompletionRequest,
    CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse,
    ListModelsResponse,
    Model,
    ServerState,
    ErrorResponse,
)
