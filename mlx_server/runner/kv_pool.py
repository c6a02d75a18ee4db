"""The paged KV pool: one K and one V array per layer, written by commits and read by gathers.

Layout `[num_blocks, kv_heads, BLOCK_SIZE, head_dim]`: seen as `[num_blocks * kv_heads, BLOCK_SIZE * head_dim]`, one
`take` with an index of shape `[rows, kv_heads, blocks]` is the contiguous `[rows, kv_heads, tokens, head_dim]` that
attention wants. A write is in place only while nobody else holds the array, so it happens at a barrier
(`ModelRunner` drains first), once per layer and kind, and no view of the pool outlives a step.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlx_server.core.step import BLOCK_SIZE

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Shapes of one layer's K and V for one token, as seen in a forward pass of the model.

    window: tokens a query sees, itself included, when the layer's cache limits them; None for all.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: mx.Dtype
    window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token."""
        return self.kv_heads * (self.k_dim + self.v_dim) * self.dtype.size


class KVPool:
    """Physical blocks for all layers. Owned by the generation thread."""

    def __init__(self, layers: Sequence[LayerSpec], num_blocks: int) -> None:
        self.layers = tuple(layers)
        self.num_blocks = num_blocks
        self._k = [self._empty(s, s.k_dim) for s in layers]
        self._v = [self._empty(s, s.v_dim) for s in layers]
        for k, v in zip(self._k, self._v, strict=True):
            mx.eval(k, v)

    def _empty(self, spec: LayerSpec, dim: int, num_blocks: int | None = None) -> mx.array:
        blocks = self.num_blocks if num_blocks is None else num_blocks
        return mx.zeros((blocks, spec.kv_heads, BLOCK_SIZE, dim), dtype=spec.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.num_blocks * BLOCK_SIZE * sum(s.bytes_per_token for s in self.layers)

    def check(self, block_ids: Sequence[int]) -> None:
        """Raise IndexError for an id outside the pool: MLX itself checks no index on the device."""
        if block_ids and (min(block_ids) < 0 or max(block_ids) >= self.num_blocks):
            raise IndexError(f"block ids {min(block_ids)}..{max(block_ids)} outside 0..{self.num_blocks - 1}")

    def write(self, layer: int, block_ids: mx.array, k: mx.array, v: mx.array) -> None:
        """Overwrite whole blocks of one layer. k, v: `[n, kv_heads, BLOCK_SIZE, dim]`, block_ids: `int32[n]`.

        The caller has drained the device and checked the ids. Evaluates, so that a layer's transient
        is gone before the next layer's begins.
        """
        self._k[layer][block_ids] = k
        self._v[layer][block_ids] = v
        mx.eval(self._k[layer], self._v[layer])

    def resize(self, num_blocks: int, moves: Sequence[tuple[int, int]]) -> None:
        """Give the pool another number of blocks, after copying blocks `(from, to)`, and memory back to the system.

        The caller has drained the device. One array at a time, so the transient is the array at hand. When memory for
        growth or for the copies is refused, the error is raised and nothing has changed; an array that could not be
        replaced by a shorter one stays as it is, since nobody looks behind the end.
        """
        self.check([block for move in moves for block in move])
        for pools in (self._k, self._v):
            for layer in range(len(pools)):
                if moves:
                    source, target = (mx.array(ids, dtype=mx.int32) for ids in zip(*moves, strict=True))
                    pools[layer][target] = mx.take(pools[layer], source, axis=0)
                    mx.eval(pools[layer])
                if num_blocks > self.num_blocks:
                    self._grow(pools, layer, num_blocks)
        self.num_blocks = num_blocks
        for pools in (self._k, self._v):
            for layer in range(len(pools)):
                self._cut(pools, layer)
        mx.clear_cache()

    def _grow(self, pools: list[mx.array], layer: int, num_blocks: int) -> None:
        pool = pools[layer]
        more = num_blocks - pool.shape[0]
        if more > 0:
            spec = self.layers[layer]
            longer = mx.concatenate([pool, self._empty(spec, pool.shape[-1], more)])
            mx.eval(longer)
            pools[layer] = longer
            del pool  # the memory of an array goes back with its last name
            mx.clear_cache()

    def _cut(self, pools: list[mx.array], layer: int) -> None:
        pool = pools[layer]
        if pool.shape[0] > self.num_blocks:
            try:
                shorter = mx.take(pool, mx.arange(self.num_blocks, dtype=mx.int32), axis=0)
                mx.eval(shorter)
            except (RuntimeError, MemoryError) as error:
                log.warning("layer %d of the KV pool keeps its size: %s", layer, error)
                return
            pools[layer] = shorter
            del pool
            mx.clear_cache()

    def gather(self, layer: int, index: mx.array) -> tuple[mx.array, mx.array]:
        """K and V `[rows, kv_heads, blocks * BLOCK_SIZE, dim]` of the blocks `index` (`int32[rows, blocks]`)."""
        spec = self.layers[layer]
        rows, blocks = index.shape
        heads = mx.arange(spec.kv_heads, dtype=mx.int32)[None, :, None]
        flat = index[:, None, :] * spec.kv_heads + heads

        def take(pool: mx.array, dim: int) -> mx.array:
            taken = mx.take(pool.reshape(-1, BLOCK_SIZE * dim), flat, axis=0)
            return taken.reshape(rows, spec.kv_heads, blocks * BLOCK_SIZE, dim)

        return take(self._k[layer], spec.k_dim), take(self._v[layer], spec.v_dim)
