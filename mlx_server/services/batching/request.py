"""A request on its way through the scheduler, and the table of its legal transitions."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from mlx_server.core.messages import GenerateRequest, Priority, SamplingParams
from mlx_server.core.step import BLOCK_SIZE
from mlx_server.services.batching.fair_share import Charge
from mlx_server.services.batching.request_queue import QueueKey


class RequestState(enum.Enum):
    """WAITING holds no row and no block; PREFILL and DECODE hold both; FINISHED holds none for long."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


_TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset({RequestState.PREFILL, RequestState.FINISHED}),
    RequestState.PREFILL: frozenset({RequestState.DECODE, RequestState.WAITING, RequestState.FINISHED}),
    RequestState.DECODE: frozenset({RequestState.WAITING, RequestState.FINISHED}),
    RequestState.FINISHED: frozenset(),
}


class IllegalTransitionError(RuntimeError):
    """A request was moved along an edge that the transition table does not have."""


@dataclass(slots=True, eq=False)
class Request:
    """Owned and changed by the scheduler alone.

    tokens: prompt, then every token generated so far and known on the host.
    num_computed: positions whose K/V is computed by the plans made so far, executed or in flight.
    num_committed: positions whose K/V is in the pool; a multiple of the block size while running.
    in_flight: samples planned whose tokens are not known yet (at most 2: one step ahead).
    block_table: physical blocks of positions [0, len * BLOCK_SIZE), reserved ahead of the commit.
    block_hashes: chained hashes of the full blocks of `tokens`, as far as computed.
    charge: what its tenant paid for its place in the queue.
    awaited_hash: of the block that a twin was computing when this request last tried to be admitted.
    """

    request_id: str
    tenant: str
    priority: Priority
    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    key: QueueKey
    arrival_s: float
    root_hash: bytes
    max_tokens: int
    state: RequestState = RequestState.WAITING
    num_computed: int = 0
    num_committed: int = 0
    in_flight: int = 0
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    cached_tokens: int = 0
    queue_s: float = 0.0
    admissions: int = 0
    charge: Charge = field(default_factory=Charge)
    awaited_hash: bytes | None = None

    @classmethod
    def create(
        cls, message: GenerateRequest, key: QueueKey, arrival_s: float, root_hash: bytes, max_tokens: int
    ) -> Request:
        """max_tokens: what is left of the message's after the prompt. One that was interrupted begins as one that was
        preempted.
        """
        prompt = message.prompt_token_ids
        return cls(
            request_id=message.request_id,
            tenant=message.tenant,
            priority=Priority(message.priority),
            tokens=[*prompt, *message.generated_token_ids],
            num_prompt_tokens=len(prompt),
            sampling=message.sampling,
            key=key,
            arrival_s=arrival_s,
            root_hash=root_hash,
            max_tokens=max_tokens,
        )

    def move_to(self, state: RequestState) -> None:
        """Raises `IllegalTransitionError` for an edge that is not in the table."""
        if state not in _TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"{self.request_id}: {self.state.value} -> {state.value}")
        self.state = state

    @property
    def num_generated(self) -> int:
        """Tokens generated and known on the host."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_planned(self) -> int:
        """Tokens generated once every plan in flight has ended."""
        return len(self.tokens) - self.num_prompt_tokens + self.in_flight

    @property
    def tail_len(self) -> int:
        """Computed positions that are not in the pool yet: they live in the row's tail."""
        return self.num_computed - self.num_committed

    @property
    def wants_decode(self) -> bool:
        """Whether it is past its prompt and may still generate."""
        return self.state is RequestState.DECODE and self.num_planned < self.max_tokens

    @property
    def is_running(self) -> bool:
        """Whether it holds a row."""
        return self.state is RequestState.PREFILL or self.state is RequestState.DECODE


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold `num_tokens` positions."""
    return -(-num_tokens // BLOCK_SIZE)
