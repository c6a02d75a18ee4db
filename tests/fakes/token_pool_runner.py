"""`TokenPoolRunner`: a fake model runner whose KV pool holds token ids, so that wrong accounting changes the text.

The next token of a row is a hash of every token it reads back through block table and tail; a stale block, a
swapped one, a lost tail or a wrong position therefore gives another text than `FakeModel.reference_text`,
which computes the same without any paging. What the contract of `core/step.py` forbids raises
`ContractError`, and stays in `violations` for the test to look at: the engine turns it into a failed step.
"""

from __future__ import annotations

import struct
import threading
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlx_server.core.errors import RowError
from mlx_server.core.messages import EngineInfo, FinishReason, SamplingParams, TokenLogprob
from mlx_server.core.step import BLOCK_SIZE, Commit, Join, SampledToken, Segment, StepPlan, StepResult

TAIL_CAPACITY = 64
"""Most tokens in the tail of a decoding row (docs/architecture: two blocks)."""


class ContractError(Exception):
    """The plan asks for what `core/step.py` forbids."""


class DeviceError(Exception):
    """A failure that the test asked for."""


@dataclass(frozen=True)
class FakeModel:
    """Deterministic 'model' and 'sampler' in one.

    eos_one_in: every n-th token or so is `eos_token_id`; 0: never.
    """

    vocab_size: int = 32000
    eos_token_id: int = 2
    eos_one_in: int = 0

    def next_token(
        self, sequence: Sequence[int], sampling: SamplingParams, seen: Sequence[int], num_generated: int
    ) -> int:
        """sequence: what was read back. seen: what the sampler knows, which matters only under a penalty."""
        state = zlib.crc32(array("I", sequence).tobytes())
        if sampling.presence_penalty:
            state = zlib.crc32(array("I", seen).tobytes(), state)
        if sampling.temperature > 0:
            state = zlib.crc32(struct.pack("<QI", sampling.seed, len(sequence)), state)
        banned = (self.eos_token_id, *sampling.stop_token_ids) if num_generated < sampling.min_tokens else ()
        while True:
            state = zlib.crc32(b"next", state)
            token = self._token(state)
            if token not in banned:
                return token

    def _token(self, state: int) -> int:
        if self.eos_one_in and state % self.eos_one_in == 0:
            return self.eos_token_id
        token = state // 64 % (self.vocab_size - 1)
        return token + 1 if token >= self.eos_token_id else token

    def reference_text(self, prompt: Sequence[int], sampling: SamplingParams, n: int) -> tuple[list[int], FinishReason]:
        """Tokens delivered for `prompt`, at most `n`, and why they end. No paging, no batch, no cache."""
        sequence, text = list(prompt), []
        while True:
            token = self.next_token(sequence, sampling, sequence, len(text))
            if (token == self.eos_token_id and not sampling.ignore_eos) or token in sampling.stop_token_ids:
                return text, FinishReason.STOP
            text.append(token)
            sequence.append(token)
            if len(text) >= n:
                return text, FinishReason.LENGTH


@dataclass(eq=False)
class _Row:
    sampling: SamplingParams
    blocks: list[int]
    tail: list[int]
    seen: list[int]
    num_prompt_tokens: int
    sampled_in: int = -1  # step in which it sampled last

    @property
    def num_computed(self) -> int:
        return len(self.blocks) * BLOCK_SIZE + len(self.tail)


@dataclass(eq=False)
class LaunchedStep:
    """A step 'on the device', with what its commits overwrote."""

    plan: StepPlan
    sampled: list[SampledToken]
    overwritten: list[tuple[int, list[int]]] = field(default_factory=list)


class TokenPoolRunner:
    """Implements `StepExecutor`. All calls come from one thread.

    fail_launch, fail_finish: ids of steps that fail there; a step that fails has not written its commits.
    poison_launch, poison: request id -> a position; every step in which the request gets there or beyond fails, at
        its launch or at its end.
    bad_rows: requests whose every step fails at its launch with a `RowError`.
    duration_s: of a plan, as `StepResult` reports it. before_finish: called with the plan, may block.
    """

    def __init__(
        self,
        num_blocks: int,
        model: FakeModel | None = None,
        *,
        max_num_seqs: int = 10_000,
        duration_s: Callable[[StepPlan], float] = lambda plan: 0.001,
        before_finish: Callable[[StepPlan], None] = lambda plan: None,
        overlaps: bool = True,
    ) -> None:
        self.overlaps = overlaps
        self.model = model or FakeModel()
        self.pool: list[list[int]] = [[] for _ in range(num_blocks)]
        self.rows: dict[str, _Row] = {}
        self.max_num_seqs = max_num_seqs
        self.fail_launch: set[int] = set()
        self.fail_finish: set[int] = set()
        self.poison_launch: dict[str, int] = {}
        self.poison: dict[str, int] = {}
        self.bad_rows: set[str] = set()
        self.violations: list[str] = []
        self.plans: list[StepPlan] = []
        self.resets = 0
        self.resizes = 0
        self.refuse_growth = False
        self.closed_on: str | None = None
        self._duration_s = duration_s
        self._before_finish = before_finish
        self._launched: deque[LaunchedStep] = deque()
        self._last_step = 0
        self._needs_reset = False
        self._thread: int | None = None

    def info(self, *, max_model_len: int, max_num_seqs: int = 64, max_num_batched_tokens: int = 256) -> EngineInfo:
        """What an engine with this runner can do."""
        return EngineInfo(
            model_id="fake",
            model_path="/nowhere",
            model_type="fake",
            vocab_size=self.model.vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=(self.model.eos_token_id,),
            num_blocks=len(self.pool),
            initial_blocks=len(self.pool),
            block_size=BLOCK_SIZE,
            kv_bytes_per_token=4,
            weight_bytes=0,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            load_s=0.0,
        )

    # ---- StepExecutor ----------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Raises `DeviceError` or `RowError` when told to, `ContractError` for a plan that is not legal."""
        self._on_own_thread()
        self._require(not self._needs_reset, "launched after a failure without a reset")
        self._require(plan.step_id > self._last_step, f"step {plan.step_id} after {self._last_step}")
        self.plans.append(plan)
        if plan.resize is not None and plan.step_id in self.fail_finish:
            self.fail_launch.add(plan.step_id)  # a resize is over when `launch` returns
        if plan.step_id in self.fail_launch or _reaches(plan, self.poison_launch):
            self._needs_reset = True
            raise DeviceError(f"launch of step {plan.step_id}")
        for segment in plan.segments:
            if segment.request_id in self.bad_rows:
                self._needs_reset = True
                raise RowError(segment.request_id, "a bad row")
        step = LaunchedStep(plan, [])
        try:
            if plan.resize is not None:
                self._resize(plan)
            self._change_rows(plan, step)
            self._forward(plan, step)
        except ContractError:
            self._needs_reset = True
            raise
        self._last_step = plan.step_id
        self._launched.append(step)
        return step

    def finish(self, step: LaunchedStep) -> StepResult:
        """Raises `DeviceError` when told to; the step's commits are then undone."""
        self._on_own_thread()
        self._require(bool(self._launched) and self._launched.popleft() is step, "finished out of order")
        self._before_finish(step.plan)
        if step.plan.step_id in self.fail_finish or _reaches(step.plan, self.poison):
            self._needs_reset = True
            for block, content in reversed(step.overwritten):
                self.pool[block] = content
            raise DeviceError(f"finish of step {step.plan.step_id}")
        return StepResult(step.plan.step_id, tuple(step.sampled), self._duration_s(step.plan))

    def reset(self) -> None:
        """Forget every row and every step that is launched."""
        self._on_own_thread()
        self.rows.clear()
        self._launched.clear()
        self._needs_reset = False
        self.resets += 1

    def close(self) -> None:
        """Remember who closed it."""
        self._on_own_thread()
        self._require(self.closed_on is None, "closed twice")
        self.closed_on = threading.current_thread().name

    # ---- rows and pool ---------------------------------------------------------------------------

    def _change_rows(self, plan: StepPlan, step: LaunchedStep) -> None:
        committed = [b for c in plan.commits for b in c.block_ids]
        self._require(len(set(committed)) == len(committed), "a block is written twice in one step")
        for commit in plan.commits:
            self._commit(commit, commit.request_id in plan.leaves, step)
        for request_id in plan.leaves:
            self._require(request_id in self.rows, f"{request_id} leaves and has no row")
            del self.rows[request_id]
        for join in plan.joins:
            self._join(join)
        self._require(len(self.rows) <= self.max_num_seqs, "more rows than max_num_seqs")

    def _resize(self, plan: StepPlan) -> None:
        assert plan.resize is not None
        self._require(not (plan.commits or plan.leaves or plan.joins or plan.segments), "a resize is not alone")
        self._require(not self._launched, "a resize with a step in flight")
        size, moves = plan.resize.num_blocks, dict(plan.resize.moves)
        if self.refuse_growth and size > len(self.pool):
            self._needs_reset = True
            raise DeviceError("no memory for a larger pool")
        for source, target in moves.items():
            self._in_range(source)
            self._require(size <= source, f"block {source} moves and is not cut off")
            self._require(0 <= target < min(size, len(self.pool)), f"block {source} moves behind the end")
            holders = [name for name, row in self.rows.items() if target in row.blocks]
            self._require(not holders, f"block {source} moves to {target}, which {holders} read")
            self.pool[target] = self.pool[source]
        for row in self.rows.values():
            row.blocks = [moves.get(block, block) for block in row.blocks]
            self._require(max(row.blocks, default=0) < size, "a block that is read is cut off")
        self.pool = self.pool[:size] + [[] for _ in range(size - len(self.pool))]
        self.resizes += 1

    def _commit(self, commit: Commit, leaving: bool, step: LaunchedStep) -> None:
        row = self._row(commit.request_id)
        n = commit.num_tokens
        self._require(0 < n <= len(row.tail), f"{commit.request_id}: commit of {n} from {len(row.tail)} tokens")
        self._require(len(commit.block_ids) == -(-n // BLOCK_SIZE), "blocks do not fit the committed tokens")
        self._require(leaving or n % BLOCK_SIZE == 0, f"{commit.request_id} commits part of a block and stays")
        for i, block in enumerate(commit.block_ids):
            self._in_range(block)
            holders = [name for name, other in self.rows.items() if block in other.blocks]
            self._require(not holders, f"block {block} is written while {holders} read it")
            step.overwritten.append((block, self.pool[block]))
            self.pool[block] = row.tail[i * BLOCK_SIZE : min((i + 1) * BLOCK_SIZE, n)]
        row.tail = row.tail[n:]
        row.blocks.extend(commit.block_ids[: n // BLOCK_SIZE])

    def _join(self, join: Join) -> None:
        self._require(join.request_id not in self.rows, f"{join.request_id} joins and has a row")
        for block in join.block_ids:
            self._in_range(block)
        tail: list[int] = []
        if join.tail_source is not None:
            block, n = join.tail_source
            self._in_range(block)
            self._require(0 < n <= min(len(self.pool[block]), BLOCK_SIZE - 1), f"tail source of {n} tokens")
            tail = self.pool[block][:n]
        row = _Row(join.sampling, list(join.block_ids), tail, list(join.history), join.num_prompt_tokens)
        self._require(row.num_computed < len(join.history), f"{join.request_id} joins with nothing to compute")
        self._require(0 < join.num_prompt_tokens <= len(join.history), "history shorter than the prompt")
        self.rows[join.request_id] = row

    def _forward(self, plan: StepPlan, step: LaunchedStep) -> None:
        ids = [s.request_id for s in plan.segments]
        self._require(len(set(ids)) == len(ids), "two segments of one row in a step")
        count = sum(1 if s.token_ids is None else len(s.token_ids) for s in plan.segments)
        self._require(plan.num_tokens == count, f"num_tokens is {plan.num_tokens}, the segments have {count}")
        for segment in plan.segments:
            self._compute(segment, plan.step_id, step)

    def _compute(self, segment: Segment, step_id: int, step: LaunchedStep) -> None:
        row = self._row(segment.request_id)
        self._require(
            row.num_computed == segment.start,
            f"{segment.request_id} is at {row.num_computed}, the plan says {segment.start}",
        )
        if segment.token_ids is None:
            before = self._last_step
            self._require(row.sampled_in == before, f"{segment.request_id} did not sample in step {before}")
            row.tail.append(row.seen[-1])
        else:
            self._require(len(segment.token_ids) > 0, "a segment without tokens")
            row.tail.extend(segment.token_ids)
        if row.sampled_in >= 0:
            self._require(len(row.tail) <= TAIL_CAPACITY, f"{segment.request_id}: the tail is over its capacity")
        if segment.sample:
            sequence = self._read(row)
            generated = len(row.seen) - row.num_prompt_tokens
            self._require(segment.num_generated == generated, f"num_generated is not {generated}")
            token = self.model.next_token(sequence, row.sampling, row.seen, segment.num_generated)
            row.seen.append(token)
            row.sampled_in = step_id
            logprob = None
            if row.sampling.top_logprobs is not None:
                logprob = TokenLogprob(fake_logprob(token, len(sequence)))
            step.sampled.append(SampledToken(token, logprob))

    def _read(self, row: _Row) -> list[int]:
        sequence: list[int] = []
        for block in row.blocks:
            content = self.pool[block]
            self._require(len(content) == BLOCK_SIZE, f"block {block} is read and has {len(content)} tokens")
            sequence += content
        return sequence + row.tail

    # ---- checks ----------------------------------------------------------------------------------

    def _row(self, request_id: str) -> _Row:
        self._require(request_id in self.rows, f"{request_id} has no row")
        return self.rows[request_id]

    def _in_range(self, block: int) -> None:
        self._require(0 <= block < len(self.pool), f"block {block} is outside the pool")

    def _on_own_thread(self) -> None:
        me = threading.get_ident()
        if self._thread is None:
            self._thread = me
        self._require(self._thread == me, "called from a second thread")

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            self.violations.append(what)
            raise ContractError(what)


def _reaches(plan: StepPlan, positions: dict[str, int]) -> bool:
    ends = ((s.request_id, s.start + len(s.token_ids or (0,))) for s in plan.segments)
    return any(request_id in positions and end >= positions[request_id] for request_id, end in ends)


def fake_logprob(token: int, position: int) -> float:
    """The 'logprob' of a token at a position: tells whether the right one was delivered with the token."""
    return -(token + position / 4096)
