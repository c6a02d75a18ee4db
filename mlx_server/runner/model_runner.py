"""`ModelRunner`: executes step plans, one forward pass each. Lives on the generation thread.

`launch` builds the graph of a step and hands it to the device; `finish` waits for its tokens. One further step
may be launched in between: its decode inputs are taken on the device from the step before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlx_server.core.errors import RowError
from mlx_server.core.step import BLOCK_SIZE, Commit, DeviceMemory, Join, Resize, Segment, StepPlan, StepResult
from mlx_server.runner.attention import ChunkRows, GroupRows, LayerCache, StepLayout
from mlx_server.runner.kv_pool import KVPool
from mlx_server.runner.memory import device_memory
from mlx_server.runner.rows import (
    DecodeGroup,
    Row,
    as_blocks,
    copy_tail,
    dissolve,
    drop_committed,
    form_group,
    width_class,
)
from mlx_server.runner.sampler import SampleOutput, Sampler, SampleSpec
from mlx_server.runner.servable import ServableModel

SHORT_CACHE_BYTES = 32 << 20
"""MLX's cache of freed buffers while memory is short."""


@dataclass(slots=True)
class LaunchedStep:
    """A step on the device. `output` is None when the plan samples nothing."""

    plan: StepPlan
    output: SampleOutput | None
    state: list[mx.array]
    launched_s: float


class ModelRunner:
    """Rows, pool and sampler of one model.

    kept_bytes_limit: memory for gathered K/V that is kept between steps (see `DecodeGroup.kept`).
    """

    def __init__(self, model: ServableModel, pool: KVPool, sampler: Sampler, kept_bytes_limit: int) -> None:
        self._model = model
        self._pool = pool
        self._sampler = sampler
        self._kept_bytes_limit = kept_bytes_limit
        self._bytes_per_token = sum(s.bytes_per_token for s in pool.layers)
        self._rows: dict[str, Row] = {}
        self._groups: list[DecodeGroup] = []
        self._last: LaunchedStep | None = None
        self._last_done_s = 0.0
        self._usual_cache_limit: int | None = None  # of MLX, while memory is short
        self.overlaps = mx.default_device() != mx.cpu

    @property
    def kept_bytes(self) -> int:
        """Bytes of gathered K/V kept between steps."""
        return sum(self._group_bytes(g) for g in self._groups if g.keeps)

    @property
    def tail_bytes(self) -> int:
        """Bytes of the K/V outside the pool: tails of rows and groups, padding included."""
        grouped = sum(len(g.rows) * g.columns for g in self._groups)
        return (grouped + sum(r.tail_len for r in self._rows.values() if r.group is None)) * self._bytes_per_token

    @property
    def live_tokens(self) -> int:
        """Positions with K/V, of all rows."""
        return sum(row.num_computed for row in self._rows.values())

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start a step. Raises `RowError` for a row that cannot take part; after any error, call `reset`."""
        launched_s = time.perf_counter()
        if plan.resize is not None:
            self._resize(plan.resize)
            return LaunchedStep(plan, None, [], launched_s)
        if plan.commits:
            self._drain()
            self._commit(plan.commits)
        for request_id in plan.leaves:
            self._leave(request_id)
        for join in plan.joins:
            self._join(join)
        output = self._forward(plan.segments) if plan.segments else None
        state = self._state()
        mx.async_eval(state, output.arrays() if output is not None else [])
        self._last = LaunchedStep(plan, output, state, launched_s)
        return self._last

    def finish(self, step: LaunchedStep) -> StepResult:
        """Wait for a launched step. Device errors surface here."""
        if step.output is not None:
            sampled = tuple(step.output.read())
        else:
            mx.eval(step.state)
            sampled = ()
        if not self._rows and step is self._last:
            self._last = None  # nobody goes on from it, and it holds what its rows had
        done_s = time.perf_counter()
        duration_s = done_s - max(step.launched_s, self._last_done_s)
        self._last_done_s = done_s
        return StepResult(step.plan.step_id, sampled, duration_s, self._memory())

    def _memory(self) -> DeviceMemory:
        active, peak = device_memory()
        return DeviceMemory(active, peak, self.kept_bytes, self.tail_bytes)

    def reset(self) -> None:
        """Drop every row after a failed step. The pool keeps what was committed."""
        self._rows.clear()
        self._groups.clear()
        self._sampler.reset()
        self._last = None

    def close(self) -> None:
        """Last call on the generation thread; without it a process that used MLX here may abort at exit."""
        self.reset()
        self._spare(False)
        mx.synchronize()
        mx.clear_cache()
        mx.clear_streams()

    def logits(self, segments: Sequence[Segment]) -> mx.array:
        """The forward pass alone, for the parity probe: logits `[sampled segments, vocab]`, in plan order."""
        logits = self._logits(self._layout(segments), segments)
        mx.eval(logits, self._state())
        return logits

    # ---- rows ----------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Wait for everything in flight: the pool may be written only when nobody else reads it."""
        if self._last is not None:
            output = self._last.output
            mx.eval(self._last.state, output.arrays() if output is not None else [])

    def _resize(self, resize: Resize) -> None:
        """Blocks of the pool move; what rows keep outside of it stays. Done, or failed, when it returns."""
        self._drain()
        self._last = None
        for group in list(self._groups):
            self._dissolve(group)
        self._spare(resize.is_short)
        self._pool.resize(resize.num_blocks, resize.moves)
        moved = dict(resize.moves)
        for row in self._rows.values():
            row.blocks = [moved.get(block, block) for block in row.blocks]

    def _spare(self, is_short: bool) -> None:
        """Keep gathered K/V and freed buffers, or hardly any of them."""
        if is_short and self._usual_cache_limit is None:
            self._usual_cache_limit = mx.set_cache_limit(SHORT_CACHE_BYTES)
        elif not is_short and self._usual_cache_limit is not None:
            mx.set_cache_limit(self._usual_cache_limit)
            self._usual_cache_limit = None

    def _commit(self, commits: Sequence[Commit]) -> None:
        rows = [self._rows[c.request_id] for c in commits]
        self._check_commits(rows, commits)
        for group in {id(r.group): r.group for r in rows if r.group is not None}.values():
            self._dissolve(group)
        ids = mx.array([b for c in commits for b in c.block_ids], dtype=mx.int32)
        for layer in range(len(self._pool.layers)):
            k_blocks, v_blocks = [], []
            for row, commit in zip(rows, commits, strict=True):
                assert row.tail is not None
                k, v = row.tail[layer]
                k_blocks.append(as_blocks(k, commit.num_tokens))
                v_blocks.append(as_blocks(v, commit.num_tokens))
            self._pool.write(layer, ids, mx.concatenate(k_blocks), mx.concatenate(v_blocks))
        for row, commit in zip(rows, commits, strict=True):
            drop_committed(row, commit.num_tokens)
            row.blocks.extend(commit.block_ids)

    def _check_commits(self, rows: Sequence[Row], commits: Sequence[Commit]) -> None:
        """Raise before anything is written: tokens too few for their blocks would be broadcast over them."""
        block_ids = [b for c in commits for b in c.block_ids]
        self._pool.check(block_ids)
        if len(set(block_ids)) < len(block_ids):
            raise ValueError(f"a commit writes a block twice: {sorted(block_ids)}")
        for row, commit in zip(rows, commits, strict=True):
            n, blocks = commit.num_tokens, len(commit.block_ids)
            if not 0 < n <= row.tail_len or blocks != -(-n // BLOCK_SIZE):
                why = f"{n} of {row.tail_len} tokens cannot be written to {blocks} blocks"
                raise RowError(row.request_id, why)

    def _leave(self, request_id: str) -> None:
        row = self._rows.pop(request_id)
        if row.group is not None:
            self._dissolve(row.group)
        self._sampler.leave(request_id)

    def _join(self, join: Join) -> None:
        try:
            self._pool.check(join.block_ids)
            row = Row(join.request_id, join.sampling, list(join.block_ids))
            if join.tail_source is not None:
                copy_tail(row, self._pool, *join.tail_source)
            self._sampler.join(join)
        except (ValueError, IndexError) as error:
            raise RowError(join.request_id, str(error)) from error
        self._rows[join.request_id] = row

    def _dissolve(self, group: DecodeGroup) -> None:
        dissolve(group)
        self._groups.remove(group)

    # ---- the forward pass ----------------------------------------------------------------------

    def _forward(self, segments: Sequence[Segment]) -> SampleOutput | None:
        layout = self._layout(segments)
        logits = self._logits(layout, segments)
        specs = [
            SampleSpec(s.request_id, s.start + len(s.token_ids or (0,)), s.num_generated) for s in segments if s.sample
        ]
        if not specs:
            return None
        return self._sampler.sample(logits, specs)

    def _layout(self, segments: Sequence[Segment]) -> StepLayout:
        """Single tokens attend in groups of similar length, longer segments as chunks; groups come first."""
        singles: dict[int, list[Row]] = {}
        chunks: list[tuple[Row, int]] = []
        for segment in segments:
            row = self._rows[segment.request_id]
            if row.num_computed != segment.start:
                raise RowError(row.request_id, f"it is at {row.num_computed}, the plan says {segment.start}")
            n = len(segment.token_ids) if segment.token_ids is not None else 1
            if n == 1:
                singles.setdefault(width_class(len(row.blocks)), []).append(row)
            else:
                chunks.append((row, n))
        layout = StepLayout(self._pool, [], [])
        end = 0
        for group in self._regroup(list(singles.values())):
            layout.groups.append(GroupRows(group, end, end + len(group.rows)))
            end += len(group.rows)
        for row, n in chunks:
            if row.group is not None:
                self._dissolve(row.group)
            layout.chunks.append(ChunkRows(row, end, end + n))
            end += n
        return layout

    def _regroup(self, wanted: list[list[Row]]) -> list[DecodeGroup]:
        """Groups with exactly these rows; a group that has them already stays as it is."""
        stay: set[int] = set()
        groups: list[DecodeGroup | None] = []
        for rows in wanted:
            group = rows[0].group
            if group is not None and len(group.rows) == len(rows) and all(r.group is group for r in rows):
                stay.add(id(group))
                groups.append(group)
            else:
                groups.append(None)
        for group in list(self._groups):
            if id(group) not in stay:
                self._dissolve(group)
        return [g if g is not None else self._form(rows) for g, rows in zip(groups, wanted, strict=True)]

    def _form(self, rows: list[Row]) -> DecodeGroup:
        group = form_group(rows, self._pool.layers)
        is_short = self._usual_cache_limit is not None
        group.keeps = not is_short and self.kept_bytes + self._group_bytes(group) <= self._kept_bytes_limit
        self._groups.append(group)
        return group

    def _group_bytes(self, group: DecodeGroup) -> int:
        return len(group.rows) * group.width * BLOCK_SIZE * self._bytes_per_token

    def _logits(self, layout: StepLayout, segments: Sequence[Segment]) -> mx.array:
        """Run the model and append to the rows' tails. Logits of the sampled segments, in plan order."""
        by_id = {s.request_id: s for s in segments}
        order: list[tuple[Row, int]] = [(r, 1) for g in layout.groups for r in g.group.rows]
        order += [(c.row, c.end - c.start) for c in layout.chunks]
        last_row: dict[str, int] = {}
        positions: list[int] = []
        for row, n in order:
            positions.extend(range(row.num_computed, row.num_computed + n))
            last_row[row.request_id] = len(positions) - 1
        offset = mx.array(positions, dtype=mx.int32)
        tokens = self._tokens([by_id[row.request_id] for row, _ in order])
        sampled = [last_row[s.request_id] for s in segments if s.sample]
        caches: list[Any] = [LayerCache(i, offset, layout) for i in range(len(self._pool.layers))]
        logits = self._model.forward(tokens[:, None], caches, mx.array(sampled, dtype=mx.int32))
        self._advance(layout)
        return logits

    def _tokens(self, segments: list[Segment]) -> mx.array:
        """`int32[T]`: host tokens, and for decodes of the step before its sampled tokens, on the device."""
        host: list[int] = []
        from_device: list[int] = []
        last = {s.request_id: i for i, s in enumerate(self._sampled_segments())}
        for segment in segments:
            if segment.token_ids is None:
                from_device.append(last[segment.request_id])
                host.append(0)
            else:
                self._check_ids(segment)
                from_device.extend([-1] * len(segment.token_ids))
                host.extend(segment.token_ids)
        if max(from_device) < 0:
            return mx.array(host, dtype=mx.int32)
        assert self._last is not None and self._last.output is not None
        index = mx.array(from_device, dtype=mx.int32)
        on_device = mx.take(self._last.output.tokens, mx.maximum(index, 0))
        if min(from_device) >= 0:
            return on_device
        return mx.where(index >= 0, on_device, mx.array(host, dtype=mx.int32))

    def _check_ids(self, segment: Segment) -> None:
        """The device checks no index."""
        ids, vocab_size = segment.token_ids or (0,), self._model.vocab_size
        if min(ids) < 0 or max(ids) >= vocab_size:
            raise RowError(segment.request_id, f"a token id is outside the vocabulary 0..{vocab_size - 1}")

    def _sampled_segments(self) -> list[Segment]:
        return [s for s in self._last.plan.segments if s.sample] if self._last is not None else []

    def _state(self) -> list[mx.array]:
        """Every array that outlives the step: all are evaluated with it, so that no graph grows over steps."""
        kvs = [kv for row in self._rows.values() for kv in row.tail or ()]
        for group in self._groups:
            kvs += [*group.tails, *group.kept.values()]
        return [a for kv in kvs for a in kv] + self._sampler.state()

    def _advance(self, layout: StepLayout) -> None:
        """Rows and groups take over the tails of this step."""
        layers = range(len(self._pool.layers))
        for g in layout.groups:
            g.group.tails = [g.tails[i] for i in layers]
            g.group.columns += 1
            for row in g.group.rows:
                row.tail_len += 1
        for c in layout.chunks:
            c.row.tail = [c.tails[i] for i in layers]
            c.row.tail_len += c.end - c.start
