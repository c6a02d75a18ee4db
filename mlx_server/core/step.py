"""`StepPlan` and `StepResult`: where scheduler and runner meet. Neither imports the other.

Plans are executed strictly in the order in which they were made. The KV pool is written only by a
plan's commits, before its forward pass and after every earlier step has ended: within a step the
pool is read-only, so a failed step has changed nothing that others read: blocks that its own commits may have
written were reserved for its own rows, and are forgotten.
"""

from __future__ import annotations

import msgspec

from mlx_server.core.messages import SamplingParams, TokenLogprob

BLOCK_SIZE = 32
"""Tokens in a KV block."""


class Join(msgspec.Struct, frozen=True, gc=False):
    """A request takes a row. Its first `len(block_ids) * BLOCK_SIZE` tokens are in the pool already.

    tail_source: (block id, n): copy the first n tokens of that block into the row's tail, or None.
    history: token ids known before the row starts (for penalties): prompt, then generated ones.
    num_prompt_tokens: how many of `history` are the prompt.
    """

    request_id: str
    sampling: SamplingParams
    block_ids: tuple[int, ...]
    tail_source: tuple[int, int] | None
    history: tuple[int, ...]
    num_prompt_tokens: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    """Write the oldest `num_tokens` of the row's tail into `block_ids`, before the forward pass.

    All blocks but the last are written full. A last block that is part-filled is never attended
    through a block table; it is only ever a `tail_source`.
    """

    request_id: str
    block_ids: tuple[int, ...]
    num_tokens: int


class Segment(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one request in a step, at positions `start ...`.

    token_ids: None for a decode whose input is the token this row sampled in the step before
        (it never leaves the device); otherwise the tokens, at least one.
    sample: whether to sample a token after the last one.
    num_generated: tokens generated before the one sampled here (for min_tokens).
    """

    request_id: str
    start: int
    token_ids: tuple[int, ...] | None
    sample: bool
    num_generated: int


class Resize(msgspec.Struct, frozen=True, gc=False):
    """The pool gets `num_blocks` blocks, and memory that is not used goes back to the system.

    moves: (from, to) of the blocks whose content has to move before the end is cut off; `to` is free.
    is_short: memory is short: from now on keep nothing for speed alone, until a resize says otherwise.
    """

    num_blocks: int
    moves: tuple[tuple[int, int], ...]
    is_short: bool = False


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    """One step, in order of execution: commits (a barrier), leaves, joins, forward and sample.

    leaves: requests whose rows are dropped; their commits, if any, are in this plan's `commits`.
    resize: of the pool; then there is nothing else in the plan, and nothing in flight beside it.
    """

    step_id: int
    commits: tuple[Commit, ...]
    leaves: tuple[str, ...]
    joins: tuple[Join, ...]
    segments: tuple[Segment, ...]
    num_tokens: int
    resize: Resize | None = None


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    """The token sampled for one segment."""

    token_id: int
    logprob: TokenLogprob | None = None


class DeviceMemory(msgspec.Struct, frozen=True, gc=False):
    """Bytes. active, peak: of MLX's allocator. kept: gathered K/V kept between steps. tails: K/V outside the pool."""

    active: int
    peak: int
    kept: int
    tails: int


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """Outcome of one plan.

    sampled: one per segment with `sample`, in the order of the plan's segments.
    duration_s: seconds the device was busy with this step alone.
    memory: what the device holds after the step.
    error: None, or why the step failed; then nothing of the plan took effect.
    culprits: the requests that alone made the step fail, where the runner can tell; empty: anybody in it may have.
    skipped: the plan was not tried, because the one before it failed.
    """

    step_id: int
    sampled: tuple[SampledToken, ...] = ()
    duration_s: float = 0.0
    memory: DeviceMemory | None = None
    error: str | None = None
    culprits: tuple[str, ...] = ()
    skipped: bool = False
