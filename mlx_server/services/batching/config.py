"""What a scheduler is told once, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_server.core.step import BLOCK_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """model_identity: root of every block hash. num_blocks: physical KV blocks, at most.
    initial_blocks: with how many the pool starts, and not below which it goes; None: all.

    max_queue: most requests of one priority that wait. max_queue_per_tenant: of one tenant.
    step_target_s: a step with decodes in it should take no longer because of prefill.
    Raises ValueError where the numbers do not fit together.
    """

    model_identity: str
    num_blocks: int
    initial_blocks: int | None = None
    max_model_len: int
    eos_token_ids: frozenset[int]
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_queue: int = 256
    max_queue_per_tenant: int = 256
    step_target_s: float = 0.12
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs + BLOCK_SIZE:
            raise ValueError("the token budget must hold a decode of every row and one block of prefill")
        if self.max_model_len > self.num_blocks * BLOCK_SIZE:
            raise ValueError("a request of max_model_len tokens must fit into the pool alone")


@dataclass(slots=True)
class Counters:
    """Totals since the start. Token counts are of first admissions: recomputing after preemption is not in them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    commits: int = 0
    steps: int = 0
    failed_steps: int = 0
    requests_finished: int = 0
