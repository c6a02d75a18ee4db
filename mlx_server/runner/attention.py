"""Attention for a step in which every token is a row: `[T, 1]` through an unmodified mlx-lm model.

Each layer's cache object is a `LayerCache`: its `offset` is the vector of absolute positions, so RoPE is right
per token, and `scaled_dot_product_attention` is replaced in every loaded `mlx_lm.models` module by `dispatch`,
which recognises the object and otherwise calls the original. Decodes attend in two parts, committed blocks and
tail (`attend.py`). Prefill chunks attend over gather(prefix), their own tail and their fresh K/V.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from mlx_server.core.step import BLOCK_SIZE
from mlx_server.runner.attend import HIDDEN, Part, attend, without_kernels
from mlx_server.runner.kv_pool import KVPool
from mlx_server.runner.rows import KV, BlockWindow, DecodeGroup, Row, block_window

GATHER_BLOCKS = 128
"""Most blocks gathered in one piece by a decode whose K/V is not kept: bounds the memory of a step."""

_ORIGINAL = base.scaled_dot_product_attention


@dataclass(slots=True, frozen=True)
class WindowMask:
    """What `make_mask` returns: not a mask, but the window that `dispatch` will apply."""

    window: int | None


@dataclass(slots=True, eq=False)
class ChunkRows:
    """A prefill chunk: rows [start, end) of the step belong to one request."""

    row: Row
    start: int
    end: int
    tails: dict[int, KV] = field(default_factory=dict)  # layer -> tail with this chunk appended
    windows: dict[int | None, tuple[mx.array | None, int]] = field(default_factory=dict)
    masks: dict[int | None, tuple[mx.array, mx.array | None]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class GroupRows:
    """A decode group: rows [start, end) of the step, in the group's order."""

    group: DecodeGroup
    start: int
    end: int
    tails: dict[int, KV] = field(default_factory=dict)
    masks: dict[tuple[int | None, str], mx.array | None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class StepLayout:
    """How the rows of one forward pass are laid out: groups first, then chunks."""

    pool: KVPool
    groups: list[GroupRows]
    chunks: list[ChunkRows]


class LayerCache:
    """What a layer of an mlx-lm model sees as its cache during one step.

    It has no attribute `bits` and is never falsy: both would send mlx-lm down another path. `offset` is
    never changed in place, since callers hold it.
    """

    def __init__(self, layer: int, offset: mx.array, layout: StepLayout) -> None:
        self.offset = offset
        self._layer = layer
        self._layout = layout
        self._window = layout.pool.layers[layer].window

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> WindowMask:
        """Called once per forward pass by the model, for all layers of a kind."""
        return WindowMask(window_size if window_size is not None else self._window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> KV:
        """Append this step's K/V `[T, kv_heads, 1, dim]` to the tails of their rows."""
        layer = self._layer
        for g in self._layout.groups:
            k, v = g.group.tails[layer]
            fresh_k, fresh_v = keys[g.start : g.end], values[g.start : g.end]
            if g.group.columns:
                g.tails[layer] = (mx.concatenate([k, fresh_k], axis=2), mx.concatenate([v, fresh_v], axis=2))
            else:
                g.tails[layer] = (fresh_k, fresh_v)
        for c in self._layout.chunks:
            fresh_k = keys[c.start : c.end, :, 0].swapaxes(0, 1)[None]
            fresh_v = values[c.start : c.end, :, 0].swapaxes(0, 1)[None]
            if c.row.tail is not None and c.row.tail_len:
                k, v = c.row.tail[layer]
                fresh_k = mx.concatenate([k, fresh_k], axis=2)
                fresh_v = mx.concatenate([v, fresh_v], axis=2)
            c.tails[layer] = (fresh_k, fresh_v)
        return keys, values

    def attend(self, q: mx.array, scale: float, mask: Any, sinks: mx.array | None) -> mx.array:
        """q `[T, heads, 1, dim]` -> `[T, heads, 1, v_dim]`."""
        window = mask.window if isinstance(mask, WindowMask) else self._window
        parts = [self._attend_group(g, q[g.start : g.end], scale, window, sinks) for g in self._layout.groups]
        parts += [self._attend_chunk(c, q[c.start : c.end], scale, window, sinks) for c in self._layout.chunks]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)

    def _attend_group(
        self, g: GroupRows, q: mx.array, scale: float, window: int | None, sinks: mx.array | None
    ) -> mx.array:
        pool, layer = self._layout.pool, self._layer
        rows, heads, _, dim = q.shape
        kv_heads = pool.layers[layer].kv_heads
        grouped = (q * scale).reshape(rows, kv_heads, heads // kv_heads, dim)
        pieces = _group_blocks(g.group, pool, layer, window)
        bias, parts, start = _blocks_mask(g, window) if pieces else None, list[Part](), 0
        for k, v in pieces:
            end = start + k.shape[2]
            parts.append((k, v, None if bias is None else bias[..., start:end]))
            start = end
        parts.append((*g.tails[layer], _tail_mask(g, window)))
        shaped_sinks = None if sinks is None else sinks.reshape(1, kv_heads, -1, 1)
        return attend(grouped, parts, shaped_sinks).reshape(rows, heads, 1, -1)

    def _attend_chunk(
        self, c: ChunkRows, q: mx.array, scale: float, window: int | None, sinks: mx.array | None
    ) -> mx.array:
        k, v = c.tails[self._layer]
        index, first = _chunk_blocks(c, window)
        prefix = None if index is None else self._layout.pool.gather(self._layer, index)
        if without_kernels():
            return self._attend_chunk_in_parts(c, q * scale, window, sinks, prefix)
        if prefix is not None:
            k, v = mx.concatenate([prefix[0], k], axis=2), mx.concatenate([prefix[1], v], axis=2)
        n, length = c.end - c.start, k.shape[2]
        mask: mx.array | str = "causal"
        if window is not None and first + length > window:
            queries = mx.arange(length - n, length)[:, None]
            keys = mx.arange(length)[None]
            mask = (keys <= queries) & (keys > queries - window)
        out = mx.fast.scaled_dot_product_attention(
            q[:, :, 0].swapaxes(0, 1)[None], k, v, scale=scale, mask=mask, sinks=sinks
        )
        return out[0].swapaxes(0, 1)[:, :, None]

    def _attend_chunk_in_parts(
        self, c: ChunkRows, q: mx.array, window: int | None, sinks: mx.array | None, prefix: KV | None
    ) -> mx.array:
        """Without a fused kernel, prefix and own tokens need not be joined, and only the own ones a causal mask."""
        n, heads, _, dim = q.shape
        kv_heads = self._layout.pool.layers[self._layer].kv_heads
        grouped = q.reshape(n, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)
        own_bias, prefix_bias = _chunk_masks(c, window)
        own_k, own_v = c.tails[self._layer]
        parts: list[Part] = [(own_k[0, :, None], own_v[0, :, None], own_bias)]
        if prefix is not None:
            parts.insert(0, (prefix[0][0, :, None], prefix[1][0, :, None], prefix_bias))
        out = attend(grouped, parts, None if sinks is None else sinks.reshape(kv_heads, -1, 1, 1))
        return out.transpose(2, 0, 1, 3).reshape(n, heads, 1, -1)


def _group_blocks(group: DecodeGroup, pool: KVPool, layer: int, window: int | None) -> list[KV]:
    """K/V of the group's committed blocks, kept from an earlier step or gathered in this one, piece by piece."""
    blocks = _window_of(group, window)
    if blocks.num_blocks == 0:
        return []
    if layer in group.kept:
        return [group.kept[layer]]
    if group.keeps:
        group.kept[layer] = pool.gather(layer, blocks.index)
        return [group.kept[layer]]
    step = max(1, GATHER_BLOCKS // len(group.rows))
    return [pool.gather(layer, blocks.index[:, i : i + step]) for i in range(0, blocks.num_blocks, step)]


def _window_of(group: DecodeGroup, window: int | None) -> BlockWindow:
    if window not in group.indices:
        group.indices[window] = block_window(group.rows, window)
    return group.indices[window]


def _bias(visible: mx.array) -> mx.array:
    """Additive mask `[rows, 1, 1, n]`."""
    return mx.where(visible, 0.0, HIDDEN)[:, None, None]


def _blocks_mask(g: GroupRows, window: int | None) -> mx.array | None:
    """Hides padding, and blocks' tokens that have left the window."""
    key = (window, "blocks")
    if key not in g.masks:
        rows, blocks = g.group.rows, _window_of(g.group, window)
        sliding = window is not None and any(r.num_computed >= window for r in rows)
        if not blocks.ragged and not sliding:
            g.masks[key] = None
        else:
            positions = blocks.first + mx.arange(blocks.num_blocks * BLOCK_SIZE, dtype=mx.int32)[None]
            visible = positions < mx.array([[r.num_committed] for r in rows], dtype=mx.int32)
            if window is not None:
                visible &= positions > mx.array([[r.num_computed - window] for r in rows], dtype=mx.int32)
            g.masks[key] = _bias(visible)
    return g.masks[key]


def _tail_mask(g: GroupRows, window: int | None) -> mx.array | None:
    """Hides the columns left of a row's own tail, and what has left the window."""
    key = (window, "tail")
    if key not in g.masks:
        columns = g.group.columns + 1
        lengths = [r.tail_len + 1 if window is None else min(r.tail_len + 1, window) for r in g.group.rows]
        if all(n == columns for n in lengths):
            g.masks[key] = None
        else:
            age = mx.arange(columns - 1, -1, -1, dtype=mx.int32)[None]
            g.masks[key] = _bias(age < mx.array(lengths, dtype=mx.int32)[:, None])
    return g.masks[key]


def _chunk_blocks(c: ChunkRows, window: int | None) -> tuple[mx.array | None, int]:
    """Index `[1, blocks]` of the prefix that the chunk's first query can see, and its first position."""
    if window not in c.windows:
        start = 0 if window is None else max(0, c.row.num_computed + 1 - window) // BLOCK_SIZE
        shown = c.row.blocks[start:]
        c.windows[window] = (mx.array([shown], dtype=mx.int32) if shown else None, start * BLOCK_SIZE)
    return c.windows[window]


def _chunk_masks(c: ChunkRows, window: int | None) -> tuple[mx.array, mx.array | None]:
    """Additive masks of a chunk's queries: over its own tail `[n, tail]`; over its prefix `[n, tokens]`, or None."""
    if window not in c.masks:
        index, first = _chunk_blocks(c, window)
        queries = mx.arange(c.row.num_computed, c.row.num_computed + c.end - c.start)[:, None]
        own = mx.arange(c.row.num_committed, c.row.num_computed + c.end - c.start)[None]
        visible = own <= queries
        prefix_bias = None
        if window is not None:
            visible &= own > queries - window
            if index is not None:
                prefix = mx.arange(first, first + index.shape[1] * BLOCK_SIZE)[None]
                prefix_bias = mx.where(prefix > queries - window, 0.0, HIDDEN)
        c.masks[window] = (mx.where(visible, 0.0, HIDDEN), prefix_bias)
    return c.masks[window]


def dispatch(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """Stands in for `mlx_lm.models.base.scaled_dot_product_attention`; same signature."""
    if isinstance(cache, LayerCache):
        return cache.attend(queries, scale, mask, sinks)
    original: mx.array = _ORIGINAL(queries, keys, values, cache, scale, mask, sinks=sinks)
    return original


def install() -> None:
    """Put `dispatch` into every `mlx_lm.models` module that is loaded. Idempotent; call after loading a model."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mlx_lm.models") and (getattr(module, "scaled_dot_product_attention", None) is _ORIGINAL):
            vars(module)["scaled_dot_product_attention"] = dispatch
