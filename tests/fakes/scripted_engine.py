"""A fake engine: it says what it was told to say. It proves nothing about batching or models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from mlx_server.core.errors import EngineDeadError, EngineNotReadyError, ModelLoadError, QueueFullError
from mlx_server.core.messages import (
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateRequest,
    MemoryLevel,
    TokenDelta,
    TokenLogprob,
)

Reply = Callable[[GenerateRequest], Sequence[int]]


def echo(request: GenerateRequest) -> Sequence[int]:
    """The prompt again, from its first token on."""
    return request.prompt_token_ids


@dataclass
class ScriptedEngine:
    """Answers `reply(request)`, `chunk` tokens a delta, cut at max_tokens.

    stall_after: after this many deltas a request waits for `resume`. fail_after: after this many it ends
    with ERROR. full: `generate` raises `QueueFullError`. crash: `generate` raises this before a token.
    load_error: `start` raises `ModelLoadError` with it. loading: `start` waits for it.
    """

    reply: Reply = echo
    chunk: int = 1
    vocab_size: int = 4096
    max_model_len: int = 512
    cached_tokens: int = 0
    stall_after: int | None = None
    fail_after: int | None = None
    full: bool = False
    crash: Exception | None = None
    load_error: str | None = None
    loading: asyncio.Event | None = None
    requests: list[GenerateRequest] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    closed_early: set[str] = field(default_factory=set)
    started: bool = False
    dead: bool = False
    memory_level: MemoryLevel = MemoryLevel.NORMAL

    def __post_init__(self) -> None:
        self.resume = asyncio.Event()
        self.stalled = asyncio.Event()  # some request has come to its stall
        self.idle = asyncio.Event()  # no request is alive
        self.idle.set()

    async def start(self) -> EngineInfo:
        if self.loading is not None:
            await self.loading.wait()
        if self.load_error is not None:
            raise ModelLoadError(self.load_error)
        self.started = True
        return self.info

    @property
    def info(self) -> EngineInfo:
        if self.dead:
            raise EngineDeadError("the scripted engine was stopped")
        if not self.started:
            raise EngineNotReadyError
        return EngineInfo(
            model_id="scripted/model",
            model_path="/nowhere",
            model_type="scripted",
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            eos_token_ids=(),
            num_blocks=16,
            initial_blocks=16,
            block_size=32,
            kv_bytes_per_token=1,
            weight_bytes=1,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            load_s=0.0,
        )

    @property
    def is_restarting(self) -> bool:
        return False

    @property
    def pid(self) -> int:
        return 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        _ = self.info
        if self.crash is not None:
            raise self.crash
        if self.full:
            raise QueueFullError(4, 7)
        self.requests.append(request)
        self.live.add(request.request_id)
        self.idle.clear()
        finished = False
        try:
            async for delta in self._deltas(request):
                finished = delta.finish_reason is not None
                yield delta
        finally:
            self.live.discard(request.request_id)
            if not finished:
                self.closed_early.add(request.request_id)
            if not self.live:
                self.idle.set()

    async def _deltas(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        wanted = list(self.reply(request))
        limit = request.sampling.max_tokens
        tokens, reason = wanted[:limit], FinishReason.LENGTH if len(wanted) > limit else FinishReason.STOP
        parts = [tokens[at : at + self.chunk] for at in range(0, len(tokens), self.chunk)] or [[]]
        for count, part in enumerate(parts):
            if self.stall_after == count:
                self.stalled.set()
                await self.resume.wait()
            if self.dead or self.fail_after == count:
                why = FinishReason.ABORT if self.dead else FinishReason.ERROR
                yield TokenDelta(request_id=request.request_id, finish_reason=why, error="scripted failure")
                return
            await asyncio.sleep(0)
            yield TokenDelta(
                request_id=request.request_id,
                token_ids=tuple(part),
                logprobs=self._logprobs(request, part),
                finish_reason=reason if count == len(parts) - 1 else None,
                cached_tokens=self.cached_tokens,
            )

    def _logprobs(self, request: GenerateRequest, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        top = request.sampling.top_logprobs
        if top is None:
            return ()
        return tuple(
            TokenLogprob(-0.5, tuple(((token + rank) % self.vocab_size, -0.5 - rank) for rank in range(top)))
            for token in tokens
        )

    async def set_memory_level(self, level: MemoryLevel) -> None:
        self.memory_level = level

    async def stats(self) -> EngineStats:
        zero = {field.name: 0 for field in msgspec.structs.fields(EngineStats) if field.required}
        running = len(self.live)
        return EngineStats(**zero | {"running": running, "streams": running})

    async def close(self) -> None:
        self.dead = True
        self.resume.set()
