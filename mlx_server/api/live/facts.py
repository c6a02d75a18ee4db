"""The facts of the dashboard: one message, sent once a second while somebody watches."""

from __future__ import annotations

import msgspec

from mlx_server.api.live.histogram import HistogramFacts
from mlx_server.api.live.recent_errors import RecentError
from mlx_server.core.messages import EngineStats


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of the machine, or of the control group where that is fuller. level: 'normal', 'warn' or 'critical'.
    engine_bytes: footprint of the engine's process; 0 where it has none of its own."""

    level: str
    total_bytes: int
    used_bytes: int
    swap_bytes: int
    engine_bytes: int


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """name: the one clients see. num_blocks: of the KV pool, now."""

    name: str
    id: str
    type: str
    max_model_len: int
    max_num_seqs: int
    weight_bytes: int
    kv_bytes_per_token: int
    num_blocks: int
    block_size: int


class KvFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the KV pool by what its blocks are: in use, kept for their prefix, free."""

    used_bytes: int
    cached_bytes: int
    free_bytes: int


class RateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """generated, prompt: tokens per second since the sample before; None in the first. hit_rate: share of the prompt
    tokens of the last minute that came from the prefix cache; None where there were none. total_hit_rate: of all."""

    generated: float | None = None
    prompt: float | None = None
    hit_rate: float | None = None
    total_hit_rate: float | None = None


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Live requests of one priority: those without a token yet, and those that have one."""

    priority: str
    starting: int
    decoding: int


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """state: 'queued', 'prefill', 'starting' (one of these two; the engine has both kinds) or 'decoding'.
    tokens_per_s: since the first token; None before it."""

    id: str
    key_id: str
    priority: str
    model: str
    state: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    tokens_per_s: float | None
    age_s: float


class Point(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One second of the history, as an array. Bytes, tokens per second, shares from 0 to 1."""

    time_s: float
    level: str | None
    machine_bytes: int | None
    engine_bytes: int | None
    weight_bytes: int
    kv_used_bytes: int
    kv_cached_bytes: int
    kv_free_bytes: int
    running: int
    waiting: int
    generated: float | None
    prompt: float | None
    hit_rate: float | None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """time_s: since the epoch. status: as in /health. model, engine, kv: None until the model has loaded.
    hidden_requests: live ones of other API keys."""

    time_s: float
    version: str
    status: str
    reason: str
    uptime_s: float
    point: Point
    rates: RateFacts
    queues: tuple[QueueFacts, ...]
    ttft: HistogramFacts
    itl: HistogramFacts
    memory: MemoryFacts | None = None
    model: ModelFacts | None = None
    engine: EngineStats | None = None
    kv: KvFacts | None = None
    requests: tuple[RequestFacts, ...] = ()
    hidden_requests: int = 0
    errors: tuple[RecentError, ...] = ()


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Sent once to a new watcher. fields: the names in a `Point`."""

    fields: tuple[str, ...]
    points: tuple[Point, ...]
