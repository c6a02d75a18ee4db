"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from mlx_server.api.access import caller_of
from mlx_server.api.deadline import request_deadline
from mlx_server.api.disconnect import until_disconnect
from mlx_server.api.live.live_requests import LiveRequest
from mlx_server.api.openai.logprobs import logprob_entries
from mlx_server.api.openai.messages import template_messages
from mlx_server.api.openai.refused import check_supported
from mlx_server.api.openai.sampling import (
    choice_seed,
    request_priority,
    request_seed,
    sampling_params,
    stop_strings,
)
from mlx_server.api.openai.types import ChatRequest, parse_chat_request, without_nulls
from mlx_server.api.openai.wire import ChunkWriter, Completion, Usage
from mlx_server.api.request_log import RequestRecord, log_prompt, record_of
from mlx_server.api.serving import LoadedModel, ServingState, serving_of
from mlx_server.api.sse import DONE, EventStream
from mlx_server.chat.generation import Deadline, TextDelta, generate_text
from mlx_server.chat.interleave import interleave
from mlx_server.chat.observed import observed
from mlx_server.chat.tokenizer import ChatTokenizer
from mlx_server.core.errors import ContextLengthError
from mlx_server.core.messages import GenerateRequest
from mlx_server.services.sizing.limit import limit_reason

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
@router.post("/chat/completions", response_model=None)
async def create_chat_completion(request: Request) -> Response:
    """Answer a chat, streamed or whole."""
    serving = serving_of(request)
    deadline = request_deadline(request, serving.settings.request_timeout_s)
    wire = _parse(await serving.bodies.read_json_object(request))
    model = serving.loaded()
    serving.check_name(wire.model)
    answer = await _prepare(wire, model, serving, request, deadline)
    if wire.stream:
        return EventStream(_frames(answer, wire), answer.record)
    body = await until_disconnect(request.receive, _whole(answer))
    return Response(body, media_type="application/json")


@dataclass(slots=True)
class _Answer:
    """An answer in the making. Owned by the request's task."""

    serving: ServingState
    completion: Completion
    tokenizer: ChatTokenizer
    deltas: AsyncGenerator[tuple[int, TextDelta], None]
    prompt_tokens: int
    record: RequestRecord
    n: int
    logprobs: bool
    generated: dict[int, int] = field(default_factory=dict)  # tokens of each choice
    cached: dict[int, int] = field(default_factory=dict)

    def note(self, index: int, delta: TextDelta) -> None:
        self.generated[index] = delta.completion_tokens
        self.cached[index] = delta.cached_tokens
        self.record.note_token()
        self.record.queue_s = max(self.record.queue_s, delta.queue_s)
        self.record.completion_tokens = sum(self.generated.values())
        self.record.cached_tokens = min(self.cached.values())

    def usage(self) -> Usage:
        cached = min(self.cached.values(), default=0)
        return Usage(self.prompt_tokens, sum(self.generated.values()), cached)


def _parse(raw: dict[str, Any]) -> ChatRequest:
    check_supported(raw)
    return parse_chat_request(raw)


async def _prepare(
    wire: ChatRequest, model: LoadedModel, serving: ServingState, request: Request, deadline: Deadline
) -> _Answer:
    """Everything that can refuse the request, before any work of the engine."""
    caller, record = caller_of(request), record_of(request)
    stops = stop_strings(wire.stop)
    messages = template_messages(wire.messages)
    if serving.settings.log_prompts:
        log_prompt(record, messages)
    max_model_len = model.info.max_model_len
    prompt = await model.tokenizer.encode_chat(messages, _template_kwargs(wire), max_model_len)
    record.prompt_tokens = len(prompt)
    room = max_model_len - len(prompt)
    if room < 1:
        reason = limit_reason(model.info, serving.settings.max_model_len)
        raise ContextLengthError(max_model_len, len(prompt), reason=reason)
    settings = serving.settings
    sampling = sampling_params(wire, model.defaults, model.info.vocab_size, room, settings.default_max_tokens)
    seed = request_seed(wire, settings.seed)
    record.note_submitted()
    record.streamed = wire.stream
    completion = Completion(serving.name)
    choices = [
        GenerateRequest(
            request_id=f"{completion.id}-{index}",
            prompt_token_ids=prompt,
            sampling=replace(sampling, seed=choice_seed(seed, index)),
            priority=request_priority(wire.priority, caller.tier),
            cache_salt=caller.key_id,
            tenant=caller.key_id,
        )
        for index in range(wire.n)
    ]
    streams = [generate_text(model.engine, one, model.tokenizer, stops, deadline) for one in choices]
    measured = [observed(stream, serving.metrics.choice(record.started_s, len(prompt))) for stream in streams]
    deltas = interleave(measured)
    live = LiveRequest(
        id=completion.id,
        key_id=caller.key_id,
        priority=choices[0].priority,
        model=serving.name,
        prompt_tokens=len(prompt),
        choices=wire.n,
        started_s=record.started_s,
    )
    tracked = serving.observed.requests.track(live, deltas)
    return _Answer(serving, completion, model.tokenizer, tracked, len(prompt), record, wire.n, wire.logprobs)


def _template_kwargs(wire: ChatRequest) -> dict[str, Any]:
    kwargs = without_nulls(wire.chat_template_kwargs)
    if wire.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", wire.reasoning_effort)
    return kwargs


async def _whole(answer: _Answer) -> bytes:
    texts: list[list[str]] = [[] for _ in range(answer.n)]
    scored: list[list[dict[str, Any]]] = [[] for _ in range(answer.n)]
    reasons: list[str | None] = [None] * answer.n
    async with answer.serving.reading(answer.deltas) as deltas:
        async for index, delta in deltas:
            answer.note(index, delta)
            texts[index].append(delta.text)
            if delta.tokens:
                scored[index] += logprob_entries(delta.tokens, answer.tokenizer)
            if delta.finish_reason is not None:
                reasons[index] = delta.finish_reason.value
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": "".join(texts[index]), "refusal": None},
            "logprobs": {"content": scored[index], "refusal": None} if answer.logprobs else None,
            "finish_reason": reasons[index],
        }
        for index in range(answer.n)
    ]
    return answer.completion.whole(choices, answer.usage())


async def _frames(answer: _Answer, wire: ChatRequest) -> AsyncGenerator[bytes, None]:
    options = wire.stream_options
    writer = ChunkWriter(answer.completion, options.include_usage)
    roles_sent = False
    async with answer.serving.reading(answer.deltas) as deltas:
        async for index, delta in deltas:
            answer.note(index, delta)
            if not roles_sent:
                roles_sent = True
                yield b"".join(writer.role(choice) for choice in range(answer.n))
            usage = answer.usage() if options.include_usage and options.continuous_usage_stats else None
            if delta.text or delta.tokens:
                scored = logprob_entries(delta.tokens, answer.tokenizer) if answer.logprobs else None
                yield writer.delta(index, delta.text, scored, usage)
            if delta.finish_reason is not None:
                yield writer.finish(index, delta.finish_reason.value, usage)
    if options.include_usage:
        yield writer.usage(answer.usage())
    yield DONE
