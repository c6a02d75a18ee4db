"""The memory of a model that serves some requests of some length, and what of it fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlx_server.core.step import BLOCK_SIZE
from mlx_server.services.sizing.shape import ModelShape

TAIL_TOKENS = 64
"""Tokens that a decoding row holds outside the pool, at most: two blocks."""

STAGED_TOKENS = 512
"""Tokens that a prefill holds outside the pool, at most."""

_SCORE_COPIES = 2  # scores, and the weights made of them


@dataclass(frozen=True, slots=True)
class Device:
    """What runs the model, and how much memory there is for it.

    limit_bytes, limit_name: that memory. program_bytes: what the processes take of it beside MLX.
    fused_head_dims: sizes of a head for which prefill keeps no attention scores.
    kept_limit, buffer_cache_limit: bytes of the pool -> bytes of gathers kept, and of MLX's freed buffers.
    """

    name: str
    limit_bytes: int
    limit_name: str
    program_bytes: int
    fused_head_dims: frozenset[int]
    kept_limit: Callable[[int], int]
    buffer_cache_limit: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes, each the most that it can be. scores: of attention, 0 where a kernel keeps none."""

    context: int
    concurrency: int
    chunk: int
    weights: int
    kv_per_token: int
    kv_per_request: int
    blocks: int
    pool: int
    tails: int
    kept: int
    scores: int
    activations: int
    buffer_cache: int
    program: int

    @property
    def total(self) -> int:
        """All of it at once."""
        return (
            self.weights
            + self.pool
            + self.tails
            + self.kept
            + self.scores
            + self.activations
            + self.buffer_cache
            + self.program
        )


def blocks_for(tokens: int) -> int:
    """Whole blocks that hold so many tokens."""
    return -(-tokens // BLOCK_SIZE)


def estimate(shape: ModelShape, device: Device, context: int, concurrency: int, max_chunk: int) -> Estimate:
    """`concurrency` requests of `context` tokens each, answers included. max_chunk: tokens of a step."""
    per_token = shape.kv_bytes_per_token
    per_request = blocks_for(context) * BLOCK_SIZE * per_token
    pool = concurrency * per_request
    chunk = min(max_chunk, context)
    is_fused = shape.head_dim in device.fused_head_dims
    # A chunk's K/V is gathered, and joined with its own, a layer at a time.
    gathers = 2 * context * shape.kv_elements_of_layer
    return Estimate(
        context=context,
        concurrency=concurrency,
        chunk=chunk,
        weights=shape.weight_bytes,
        kv_per_token=per_token,
        kv_per_request=per_request,
        blocks=concurrency * blocks_for(context),
        pool=pool,
        tails=(concurrency * TAIL_TOKENS + STAGED_TOKENS) * per_token,
        kept=device.kept_limit(pool),
        scores=0 if is_fused else _SCORE_COPIES * shape.heads * chunk * context * shape.element_bytes,
        activations=(chunk * (4 * shape.hidden + 3 * shape.intermediate) + gathers) * shape.element_bytes,
        buffer_cache=device.buffer_cache_limit(pool),
        program=device.program_bytes,
    )


def largest_context(shape: ModelShape, device: Device, concurrency: int, max_chunk: int) -> int:
    """Most tokens that so many requests may have each, in whole blocks, up to the model's context; 0 for none."""
    most = _largest(
        lambda blocks: estimate(shape, device, blocks * BLOCK_SIZE, concurrency, max_chunk).total <= device.limit_bytes,
        blocks_for(shape.context),
    )
    return min(most * BLOCK_SIZE, shape.context)


def largest_concurrency(shape: ModelShape, device: Device, context: int, most: int, max_chunk: int) -> int:
    """Most requests of `context` tokens each that fit, up to `most`; 0 for none."""
    return _largest(lambda n: estimate(shape, device, context, n, max_chunk).total <= device.limit_bytes, most)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n of 0..most that fits; what fits, fits also when it is smaller."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
