"""One look at everything: the engine's counters, the machine's memory, and what the daemon remembers."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque

from mlx_server import __version__
from mlx_server.api.health import state_of
from mlx_server.api.live.facts import (
    Facts,
    KvFacts,
    MemoryFacts,
    ModelFacts,
    Point,
    QueueFacts,
    RateFacts,
    RequestFacts,
)
from mlx_server.api.live.histogram import histogram_facts
from mlx_server.api.live.live_requests import LiveRequest
from mlx_server.api.serving import ServingState
from mlx_server.core.errors import EngineDeadError, EngineNotReadyError
from mlx_server.core.messages import EngineInfo, EngineStats, Priority

HISTORY_S = 600
"""How far back the history goes; it grows only while somebody watches."""
_RECENT_S = 60.0
"""Over which the recent hit rate is taken."""
_PAUSE_S = 5.0
"""Counters that were read longer ago say nothing of now."""


class Sampler:
    """Takes samples and keeps those of the last ten minutes. Owned by the event loop."""

    def __init__(self, serving: ServingState) -> None:
        self._serving = serving
        self._counters: deque[tuple[float, EngineStats]] = deque()  # of the last minute, with their times
        self.history: deque[Point] = deque(maxlen=HISTORY_S)

    async def sample(self) -> Facts:
        """The facts of now, which also become the history's newest point."""
        info, stats = await self._engine()
        now_s = time.monotonic()
        rates = self._rates(now_s, stats)
        memory = _memory(self._serving)
        kv = None if info is None or stats is None else _kv(info, stats)
        point = _point(info, stats, rates, memory, kv)
        while self.history and self.history[0].time_s < point.time_s - HISTORY_S:
            self.history.popleft()
        self.history.append(point)
        about = state_of(self._serving)
        observed = self._serving.observed
        alive = observed.requests.all()
        return Facts(
            time_s=point.time_s,
            version=__version__,
            status=about["status"],
            reason=about.get("reason", ""),
            uptime_s=now_s - self._serving.started_s,
            point=point,
            rates=rates,
            queues=_queues(alive),
            ttft=histogram_facts(self._serving.metrics.first_token),
            itl=histogram_facts(self._serving.metrics.inter_token),
            memory=memory,
            model=None if info is None else self._model(info, stats),
            engine=stats,
            kv=kv,
            requests=_requests(alive, stats),
            errors=observed.errors.facts(),
        )

    async def _engine(self) -> tuple[EngineInfo | None, EngineStats | None]:
        if self._serving.model is None:
            return None, None
        with contextlib.suppress(EngineNotReadyError, EngineDeadError):  # the status says it
            return self._serving.model.info, await self._serving.model.engine.stats()
        return self._serving.model.info, None

    def _model(self, info: EngineInfo, stats: EngineStats | None) -> ModelFacts:
        return ModelFacts(
            name=self._serving.name,
            id=info.model_id,
            type=info.model_type,
            max_model_len=info.max_model_len,
            max_num_seqs=info.max_num_seqs,
            weight_bytes=info.weight_bytes,
            kv_bytes_per_token=info.kv_bytes_per_token,
            num_blocks=_pool_blocks(stats) or info.num_blocks,
            block_size=info.block_size,
        )

    def _rates(self, now_s: float, stats: EngineStats | None) -> RateFacts:
        if stats is None:
            self._counters.clear()
            return RateFacts()
        if self._counters and stats.steps < self._counters[-1][1].steps:  # another process, which counts anew
            self._counters.clear()
        self._counters.append((now_s, stats))
        while now_s - self._counters[0][0] > _RECENT_S:
            self._counters.popleft()
        generated = prompt = None
        if len(self._counters) > 1 and now_s - self._counters[-2][0] < _PAUSE_S:
            then_s, then = self._counters[-2]
            passed_s = max(now_s - then_s, 1e-3)
            generated = (stats.generated_tokens - then.generated_tokens) / passed_s
            prompt = (stats.prompt_tokens - then.prompt_tokens) / passed_s
        first = self._counters[0][1]
        return RateFacts(
            generated=generated,
            prompt=prompt,
            hit_rate=_share(stats.cached_tokens - first.cached_tokens, stats.prompt_tokens - first.prompt_tokens),
            total_hit_rate=_share(stats.cached_tokens, stats.prompt_tokens),
        )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _pool_blocks(stats: EngineStats | None) -> int:
    return 0 if stats is None else stats.blocks_used + stats.blocks_cached + stats.blocks_free


def _memory(serving: ServingState) -> MemoryFacts | None:
    reading = serving.memory
    if reading is None:
        return None
    total, used = reading.total_bytes, reading.total_bytes - reading.available_bytes
    if reading.cgroup_limit_bytes and reading.cgroup_used_bytes is not None:
        group = reading.cgroup_limit_bytes, reading.cgroup_used_bytes
        total, used = max((total, used), group, key=lambda pair: pair[1] / pair[0])
    return MemoryFacts(
        level=serving.memory_level.name.lower(),
        total_bytes=total,
        used_bytes=used,
        swap_bytes=reading.swap_used_bytes,
        engine_bytes=reading.footprint_bytes.get("engine", 0),
    )


def _kv(info: EngineInfo, stats: EngineStats) -> KvFacts:
    block_bytes = info.block_size * info.kv_bytes_per_token
    return KvFacts(
        used_bytes=stats.blocks_used * block_bytes,
        cached_bytes=stats.blocks_cached * block_bytes,
        free_bytes=stats.blocks_free * block_bytes,
    )


def _point(
    info: EngineInfo | None,
    stats: EngineStats | None,
    rates: RateFacts,
    memory: MemoryFacts | None,
    kv: KvFacts | None,
) -> Point:
    return Point(
        time_s=round(time.time(), 3),
        level=None if memory is None else memory.level,
        machine_bytes=None if memory is None else memory.used_bytes,
        engine_bytes=None if memory is None else memory.engine_bytes,
        weight_bytes=0 if info is None else info.weight_bytes,
        kv_used_bytes=0 if kv is None else kv.used_bytes,
        kv_cached_bytes=0 if kv is None else kv.cached_bytes,
        kv_free_bytes=0 if kv is None else kv.free_bytes,
        running=0 if stats is None else stats.running,
        waiting=0 if stats is None else stats.waiting,
        generated=_rounded(rates.generated),
        prompt=_rounded(rates.prompt),
        hit_rate=_rounded(rates.hit_rate),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _queues(alive: list[LiveRequest]) -> tuple[QueueFacts, ...]:
    starting = Counter(request.priority for request in alive if request.first_token_s is None)
    decoding = Counter(request.priority for request in alive if request.first_token_s is not None)
    return tuple(
        QueueFacts(priority=priority.name.lower(), starting=starting[priority], decoding=decoding[priority])
        for priority in Priority
    )


def _requests(alive: list[LiveRequest], stats: EngineStats | None) -> tuple[RequestFacts, ...]:
    now_s = time.perf_counter()
    before_token = _state_before_token(alive, stats)
    return tuple(_request(request, before_token, now_s) for request in alive)


def _state_before_token(alive: list[LiveRequest], stats: EngineStats | None) -> str:
    """What requests without a token do, as far as the engine's totals tell."""
    if stats is None:
        return "queued"
    if stats.waiting == 0:
        return "prefill"
    decoding = sum(request.choices for request in alive if request.first_token_s is not None)
    return "queued" if stats.running <= decoding else "starting"


def _request(request: LiveRequest, before_token: str, now_s: float) -> RequestFacts:
    generated = sum(request.generated.values())
    tokens_per_s = None
    if request.first_token_s is not None and now_s > request.first_token_s:
        tokens_per_s = round(generated / (now_s - request.first_token_s), 2)
    return RequestFacts(
        id=request.id,
        key_id=request.key_id,
        priority=request.priority.name.lower(),
        model=request.model,
        state=before_token if request.first_token_s is None else "decoding",
        prompt_tokens=request.prompt_tokens,
        cached_tokens=min(request.cached.values(), default=0),
        generated_tokens=generated,
        tokens_per_s=tokens_per_s,
        age_s=round(now_s - request.started_s, 2),
    )
