"""Rows on the device: a request's place in the pool, its tail, and the groups in which decodes attend.

A tail holds the K/V of positions that are computed but not committed, oldest first. A row outside a group has
a tail of its own; the rows of a group share one right-aligned array per layer and kind, so that the newest
token of every row is the last column, and appending a step is one concatenation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from mlx_server.core.messages import SamplingParams
from mlx_server.core.step import BLOCK_SIZE
from mlx_server.runner.kv_pool import KVPool, LayerSpec

KV = tuple[mx.array, mx.array]
"""K and V of one layer, `[rows, kv_heads, tokens, dim]`."""


@dataclass(slots=True, eq=False)
class Row:
    """One running request on the device.

    blocks: physical blocks of the committed positions, all full.
    tail_len: positions computed and not committed. tail: their K/V per layer while outside a group.
    """

    request_id: str
    sampling: SamplingParams
    blocks: list[int]
    tail_len: int = 0
    tail: list[KV] | None = None
    group: DecodeGroup | None = None

    @property
    def num_committed(self) -> int:
        """Positions in the pool."""
        return len(self.blocks) * BLOCK_SIZE

    @property
    def num_computed(self) -> int:
        """Positions with K/V, in pool and tail together: the position of the next token."""
        return self.num_committed + self.tail_len


@dataclass(slots=True, eq=False)
class DecodeGroup:
    """Rows of similar context length that attend together, one token each.

    width: blocks of the longest row. tails: per layer, `[rows, kv_heads, columns, dim]`.
    kept: layer -> the gathered K/V of committed blocks, from the group's first step on if `keeps`, that
        is if the allowance had room; committed blocks never change, so it stays true.
    """

    rows: list[Row]
    tails: list[KV]
    columns: int
    keeps: bool = False
    kept: dict[int, KV] = field(default_factory=dict)
    indices: dict[int | None, BlockWindow] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Blocks of the longest row."""
        return max(len(row.blocks) for row in self.rows)


@dataclass(slots=True, frozen=True)
class BlockWindow:
    """The committed blocks that a group's queries can see through a window.

    index: `int32[rows, blocks]`, padded with block 0. first: `int32[rows, 1]`, position of the first one.
    ragged: whether some row has fewer tokens than the rectangle.
    """

    index: mx.array
    first: mx.array
    num_blocks: int
    ragged: bool


def block_window(rows: list[Row], window: int | None) -> BlockWindow:
    """Leave out the blocks that have left the window of every query from here on."""
    starts = [0 if window is None else max(0, r.num_computed + 1 - window) // BLOCK_SIZE for r in rows]
    shown = [r.blocks[min(s, len(r.blocks)) :] for r, s in zip(rows, starts, strict=True)]
    width = max(len(b) for b in shown)
    return BlockWindow(
        index=mx.array([b + [0] * (width - len(b)) for b in shown], dtype=mx.int32).reshape(len(rows), width),
        first=mx.array([[s * BLOCK_SIZE] for s in starts], dtype=mx.int32),
        num_blocks=width,
        ragged=any(len(b) < width for b in shown),
    )


def width_class(num_blocks: int) -> int:
    """Rows are grouped by this: up to 8 blocks together, then by powers of two, so padding at most doubles."""
    return max(num_blocks - 1, 7).bit_length()


def form_group(rows: list[Row], layers: tuple[LayerSpec, ...]) -> DecodeGroup:
    """Line the rows' own tails up at the right. The rows must be outside any group."""
    columns = max(row.tail_len for row in rows)
    tails = []
    for layer, spec in enumerate(layers):
        parts_k, parts_v = [], []
        for row in rows:
            k, v = row.tail[layer] if row.tail else _empty_tail(spec)
            parts_k.append(_pad_left(k, columns))
            parts_v.append(_pad_left(v, columns))
        tails.append((mx.concatenate(parts_k, axis=0), mx.concatenate(parts_v, axis=0)))
    group = DecodeGroup(rows, tails, columns)
    for row in rows:
        row.tail, row.group = None, group
    return group


def dissolve(group: DecodeGroup) -> None:
    """Give every row of the group its own tail back."""
    for i, row in enumerate(group.rows):
        if row.group is group:
            start = group.columns - row.tail_len
            row.tail = [(k[i : i + 1, :, start:], v[i : i + 1, :, start:]) for k, v in group.tails]
            row.group = None
    group.rows = []


def drop_committed(row: Row, num_tokens: int) -> None:
    """The oldest `num_tokens` of the tail are in the pool now. The row is outside any group."""
    assert row.tail is not None
    row.tail = [(k[:, :, num_tokens:], v[:, :, num_tokens:]) for k, v in row.tail]
    row.tail_len -= num_tokens


def copy_tail(row: Row, pool: KVPool, block: int, num_tokens: int) -> None:
    """Start a row's tail with the first tokens of a cached block."""
    pool.check([block])
    if not 0 < num_tokens <= BLOCK_SIZE:
        raise ValueError(f"a tail cannot start with {num_tokens} tokens of a block of {BLOCK_SIZE}")
    index = mx.array([[block]], dtype=mx.int32)
    row.tail = []
    for layer in range(len(pool.layers)):
        k, v = pool.gather(layer, index)
        row.tail.append((k[:, :, :num_tokens], v[:, :, :num_tokens]))
    row.tail_len = num_tokens


def as_blocks(tail: mx.array, num_tokens: int) -> mx.array:
    """The oldest tokens of a tail `[1, heads, n, dim]` as blocks `[blocks, heads, BLOCK_SIZE, dim]`, zero-padded."""
    _, heads, _, dim = tail.shape
    taken = tail[0, :, :num_tokens]
    padding = -num_tokens % BLOCK_SIZE
    if padding:
        taken = mx.pad(taken, [(0, 0), (0, padding), (0, 0)])
    return taken.reshape(heads, -1, BLOCK_SIZE, dim).swapaxes(0, 1)


def _empty_tail(spec: LayerSpec) -> KV:
    shape = (1, spec.kv_heads, 0)
    return mx.zeros((*shape, spec.k_dim), dtype=spec.dtype), mx.zeros((*shape, spec.v_dim), dtype=spec.dtype)


def _pad_left(tail: mx.array, columns: int) -> mx.array:
    missing = columns - tail.shape[2]
    return mx.pad(tail, [(0, 0), (0, 0), (missing, 0), (0, 0)]) if missing else tail
