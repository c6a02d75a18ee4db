"""The frozen messages between the HTTP side and an engine. Token ids only: an engine knows no text.

They are plain data (`msgspec.Struct`), so that they can cross a process boundary unchanged.
"""

from __future__ import annotations

import enum

import msgspec


class Priority(enum.IntEnum):
    """Level of a request; each level above `HIGH` costs `PATIENCE_S` of waiting in the queue."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class MemoryLevel(enum.IntEnum):
    """How short the machine is of memory. The daemon reads it; an engine acts on it."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2


class FinishReason(enum.StrEnum):
    """Why a request ended. Every request ends exactly once, with one of these."""

    STOP = "stop"  # an end-of-sequence or stop token; the token itself is not delivered
    LENGTH = "length"  # max_tokens reached
    ABORT = "abort"  # cancelled by the caller (disconnect, a stop string found in the text)
    ERROR = "error"  # `TokenDelta.error` says what


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to pick tokens. The order of application is that of `runner/sampler.py`.

    max_tokens: tokens to generate, >= 1 (the engine lowers it to what the context leaves).
    min_tokens: end-of-sequence and stop tokens are impossible before this many.
    temperature: 0 is greedy. top_p in (0, 1]; top_k 0 is off; min_p in [0, 1].
    logit_bias: token id -> added to the logit; ids are below the vocabulary size.
    seed: any 64-bit unsigned; the text depends on (seed, position) alone, not on the batch.
    top_logprobs: None for none, 0 for the sampled token's, n for the n best beside it.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    top_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate. `request_id` is unique among those alive in the engine.

    generated_token_ids: tokens generated before, by an engine that is gone or before a pause. They count against
        `max_tokens`, are not delivered again, and the text goes on as if there had been no interruption.
    cache_salt: requests with different salts never share cached blocks.
    tenant: on whose behalf (the id of an API key, or empty); waiting tenants share the engine fairly.
    arrival_s: when it first arrived, in seconds of the system's monotonic clock; None: now. Keeps its place in the
        queue over an interruption.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    generated_token_ids: tuple[int, ...] = ()
    priority: Priority = Priority.NORMAL
    cache_salt: str = ""
    tenant: str = ""
    arrival_s: float | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability (natural log, of the raw model distribution) of one generated token.

    top: (token id, logprob) of the most likely tokens, best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request. The last delta of a request carries `finish_reason`.

    logprobs: one per token of `token_ids`, or empty when none were asked for.
    cached_tokens: prompt tokens served from the prefix cache (constant over a request's deltas).
    queue_s: seconds between arrival and the first admission.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    cached_tokens: int = 0
    queue_s: float = 0.0


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded engine can do.

    max_model_len: most tokens (prompt + generated) of one request: the smaller of the model's
        context, the configured limit and the KV pool.
    num_blocks: most KV blocks of the pool. initial_blocks: with how many it starts.
    """

    model_id: str
    model_path: str
    model_type: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    initial_blocks: int
    block_size: int
    kv_bytes_per_token: int
    weight_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    load_s: float


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of an engine, cheap to take. The bytes are those of the device after the last step.

    commits: writes of full blocks into the pool. running_by_priority, waiting_by_priority: indexed by `Priority`.
    streams: requests that have not ended; paused_streams: those of them that wait for their reader.
    pool_blocks: blocks that the pool has now; `EngineInfo.num_blocks` is the most it may have.
    memory_level: what the engine was last told.
    process_number: of the process that counted: 0 for the first, 1 for the one that replaced it.
    pid: of the process that holds the model; 0 while there is none. restarts: times that it had to be replaced.
    resumed: requests that went on in another process than they began in.
    """

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    evictions: int
    steps: int
    failed_steps: int
    requests_finished: int
    active_bytes: int = 0
    peak_bytes: int = 0
    kept_kv_bytes: int = 0
    tail_kv_bytes: int = 0
    commits: int = 0
    running_by_priority: tuple[int, int, int] = (0, 0, 0)
    waiting_by_priority: tuple[int, int, int] = (0, 0, 0)
    streams: int = 0
    paused_streams: int = 0
    pool_blocks: int = 0
    memory_level: MemoryLevel = MemoryLevel.NORMAL
    process_number: int = 0
    pid: int = 0
    restarts: int = 0
    resumed: int = 0
