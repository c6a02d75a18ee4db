"""The scheduler: who computes what in the next step. No await, no clock, no thread, no log call.

A step has a budget of tokens. Running decodes come first; what is left goes to prefill chunks in queue
order, sized by predicted time (token budget and mixed batches as in vLLM and Sarathi-Serve, arXiv
2403.02310). When memory is short: evict cached blocks, then queue, then preempt the running request with
the largest key, by recompute, with its blocks kept in the cache.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass

from mlx_server.core.errors import ContextLengthError, QueueFullError, RequestError
from mlx_server.core.messages import EngineStats, FinishReason, GenerateRequest, Priority, TokenDelta
from mlx_server.core.step import BLOCK_SIZE, Commit, Join, SampledToken, Segment, StepPlan, StepResult
from mlx_server.services.batching.block_tables import BlockTables
from mlx_server.services.batching.prefill_budget import PrefillBudget
from mlx_server.services.batching.prefix_cache import Match, PrefixCache, root_hash
from mlx_server.services.batching.request import Request, RequestState, blocks_for
from mlx_server.services.batching.request_queue import RequestQueue, queue_key
from mlx_server.services.batching.step_time import StepTimePredictor, prefill_units

TAIL_CAPACITY = 64
"""Tokens a decoding row's tail holds before it must be committed: two blocks."""

STAGE_CAPACITY = 512
"""Tokens a prefilling row stages before they are committed: a barrier every few chunks, not every one."""

_MAX_DEFERRED = 64
_LOOKAHEAD_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """model_identity: root of every block hash. num_blocks: physical KV blocks.

    step_target_s: a step with decodes in it should take no longer because of prefill.
    """

    model_identity: str
    num_blocks: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_queue: int = 256
    step_target_s: float = 0.12
    prefix_cache: bool = True


@dataclass(slots=True)
class _Counters:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    failed_steps: int = 0
    requests_finished: int = 0


class _Draft:
    """A plan being made."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.leaves: list[str] = []
        self.joins: list[Join] = []
        self.segments: list[Segment] = []
        self.num_tokens = 0

    def is_empty(self) -> bool:
        return not (self.segments or self.joins or self.leaves or self.commits)


class Scheduler:
    """Owns every `Request`. `schedule` may be called again before `update` of the plan it returned, but
    not twice: at most one plan is in flight while the next is made.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        if config.max_num_batched_tokens < config.max_num_seqs + BLOCK_SIZE:
            raise ValueError("the token budget must hold a decode of every row and one block of prefill")
        if config.max_model_len > config.num_blocks * BLOCK_SIZE:
            raise ValueError("a request of max_model_len tokens must fit into the pool alone")
        self.config = config
        self.cache = PrefixCache(config.num_blocks, enabled=config.prefix_cache)
        self.counters = _Counters()
        self._tables = BlockTables(self.cache)
        self._times = StepTimePredictor()
        self._queue = RequestQueue()
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []  # in key order
        self._ending: list[Request] = []  # finished; row and blocks go at the next step boundary
        self._undelivered: list[TokenDelta] = []
        self._units: dict[int, float] = {}  # step id -> prefill units, for the predictor
        self._seq = 0
        self._step_id = 0
        self._twins_wait = False
        self._recovering = False
        self._finish_gap_s = 1.0
        self._last_finish_s: float | None = None
        self._now = 0.0

    # ---- requests in and out -------------------------------------------------------------------

    def add(self, message: GenerateRequest, now: float) -> None:
        """Queue a request. Raises `QueueFullError`, `ContextLengthError` or `RequestError`."""
        prompt_len = len(message.prompt_token_ids)
        if prompt_len == 0:
            raise RequestError("the prompt is empty; at least one token is needed", field="prompt")
        if prompt_len >= self.config.max_model_len:
            raise ContextLengthError(self.config.max_model_len, prompt_len)
        if message.request_id in self._requests:
            raise RequestError(f"request id {message.request_id!r} is in use", field="request_id")
        if len(self._queue) >= self.config.max_queue:
            raise QueueFullError(self.config.max_queue, max(1, math.ceil(self._finish_gap_s)))
        self._seq += 1
        key = queue_key(now, Priority(message.priority), self._seq)
        root = root_hash(self.config.model_identity, message.cache_salt)
        request = Request.create(message, key, now, root, self.config.max_model_len)
        self._requests[request.request_id] = request
        self._queue.push(request.request_id, key)

    def cancel(self, request_id: str) -> bool:
        """End a request wherever it is; its blocks are free at the next `schedule`. False: not alive."""
        request = self._requests.get(request_id)
        if request is None or request.state is RequestState.FINISHED:
            return False
        self._undelivered.append(self._finish(request, FinishReason.ABORT))
        return True

    def take_undelivered(self) -> list[TokenDelta]:
        """Deltas of requests that ended outside `update` (cancelled ones)."""
        deltas, self._undelivered = self._undelivered, []
        return deltas

    @property
    def has_work(self) -> bool:
        """Whether `schedule` has, or will have after the next `update`, something to plan."""
        return bool(self._queue or self._running or self._ending)

    def _finish(
        self, request: Request, reason: FinishReason, error: str | None = None, token: SampledToken | None = None
    ) -> TokenDelta:
        if request.is_running:
            self._running.remove(request)
            self._ending.append(request)
        else:
            self._queue.remove(request.request_id)
        request.move_to(RequestState.FINISHED)
        self._forget_if_over(request)
        self.counters.requests_finished += 1
        return _delta(request, token, reason, error)

    def _forget_if_over(self, request: Request) -> None:
        if request.state is RequestState.FINISHED and not request.in_flight and request not in self._ending:
            del self._requests[request.request_id]

    # ---- schedule ------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step, or None when nothing can be planned before the next `update` or `add`.

        After a failed step nothing is planned until every plan in flight has come back.
        """
        self._now = now
        if self._recovering and self._units:
            return None
        self._recovering = False
        draft = _Draft()
        self._plan_endings(draft)
        self._make_room_for_head(draft)
        self._plan_decodes(draft)
        units = self._plan_prefills(draft, now)
        if draft.is_empty():
            return None
        self._step_id += 1
        self._units[self._step_id] = units
        return StepPlan(
            step_id=self._step_id,
            commits=tuple(draft.commits),
            leaves=tuple(draft.leaves),
            joins=tuple(draft.joins),
            segments=tuple(draft.segments),
            num_tokens=draft.num_tokens,
        )

    def _plan_endings(self, draft: _Draft) -> None:
        for request in self._ending:
            self._leave(request, draft)
        ended, self._ending = self._ending, []
        for request in ended:
            self._forget_if_over(request)

    def _leave(self, request: Request, draft: _Draft) -> None:
        commit = self._tables.commit(request, final=True)
        if commit is not None:
            draft.commits.append(commit)
        draft.leaves.append(request.request_id)
        self._tables.release(request)

    def _preempt(self, request: Request, draft: _Draft) -> None:
        self._running.remove(request)
        self._leave(request, draft)
        request.move_to(RequestState.WAITING)
        self._queue.push(request.request_id, request.key)
        self.counters.preemptions += 1

    def _make_room_for_head(self, draft: _Draft) -> None:
        """The most important waiting request may take the place of less important running ones."""
        head = self._queue.peek()
        if head is None:
            return
        request = self._requests[head]
        if request.in_flight or not self._running or self._running[-1].key < request.key:
            return
        match = self._tables.match(request)
        if self._tables.twin_of(request, match) is not None:
            return
        victims = [r for r in self._running if request.key < r.key]
        gain = sum(len(r.block_table) for r in victims)  # at most: some may be shared with rows that stay
        if not self._fits(request, match, gain, len(self._running) - len(victims)):
            return
        while self._running and request.key < self._running[-1].key:
            rows_full = len(self._running) >= self.config.max_num_seqs
            if not rows_full and self._fits(request, self._tables.match(request), 0, len(self._running)):
                return
            self._preempt(self._running[-1], draft)

    def _plan_decodes(self, draft: _Draft) -> None:
        i = 0
        while i < len(self._running):
            request = self._running[i]
            if request.state is RequestState.DECODE and request.num_planned < request.max_tokens:
                while request.is_running and not self._tables.grow(request):
                    self._preempt(self._running[-1], draft)
                if not request.is_running:
                    break  # it was the least important itself; nobody is behind it
            i += 1
        self._plan_commits(draft)
        for request in self._running:
            if request.state is RequestState.DECODE and request.num_planned < request.max_tokens:
                _plan_decode(request, draft)

    def _plan_commits(self, draft: _Draft) -> None:
        """A commit is a barrier, so when one row must be committed all rows with a full block are."""
        due = bool(draft.commits) or self._twins_wait
        for request in self._running:
            if due:
                break
            capacity = TAIL_CAPACITY if request.state is RequestState.DECODE else STAGE_CAPACITY
            due = request.tail_len >= capacity
        if not due:
            return
        for request in self._running:
            if request.tail_len >= BLOCK_SIZE:
                commit = self._tables.commit(request)
                if commit is not None:
                    draft.commits.append(commit)

    def _plan_prefills(self, draft: _Draft, now: float) -> float:
        """Chunks in queue order: running prefills and waiting requests merged by key. Units planned."""
        prefilling = [r for r in self._running if r.state is RequestState.PREFILL]
        deferred: list[Request] = []
        budget = PrefillBudget(
            tokens=self.config.max_num_batched_tokens - draft.num_tokens,
            units=self._units_allowed(draft),
        )
        planned_units = 0.0
        admitting = len(self._running) < self.config.max_num_seqs
        while budget.tokens > 0 and (request := self._next_prefill(prefilling, admitting)) is not None:
            if request.state is RequestState.WAITING:
                outcome = self._admit(request, draft, now)
                if outcome is None:
                    admitting = False  # rows that prefill go on, also behind it: it may be their twin
                    continue
                if not outcome:
                    deferred.append(request)
                    admitting = len(deferred) < _MAX_DEFERRED
                    continue
            others = bool(prefilling) or (admitting and bool(self._queue))
            chunk = budget.chunk(request.num_computed, len(request.tokens), others_wait=others)
            if chunk == 0:
                break
            planned_units += prefill_units(chunk, request.num_computed)
            budget.take(chunk, request.num_computed)
            _plan_chunk(request, chunk, draft)
        for request in deferred:
            self._queue.push(request.request_id, request.key)
        self._twins_wait = bool(deferred)
        return planned_units

    def _units_allowed(self, draft: _Draft) -> float:
        decoding = bool(draft.segments)
        target_s = self.config.step_target_s * (1 if decoding else 4)
        return self._times.units_within(target_s, decoding=decoding)

    def _next_prefill(self, prefilling: list[Request], admitting: bool) -> Request | None:
        head = self._queue.peek() if admitting else None
        waiting = self._requests[head] if head is not None else None
        if prefilling and (waiting is None or prefilling[0].key < waiting.key):
            return prefilling.pop(0)
        return waiting

    def _admit(self, request: Request, draft: _Draft, now: float) -> bool | None:
        """Take the head of the queue. None: no room, or preempted with its last token still on the device,
        so nobody behind it may pass; False: it waits on purpose, for a twin that computes its prefix.
        """
        if len(self._running) >= self.config.max_num_seqs or request.in_flight:
            return None
        match = self._tables.match(request)
        if self._tables.twin_of(request, match) is not None:
            self._queue.remove(request.request_id)
            return False
        if not self._fits(request, match, 0, len(self._running)):
            return None
        join = self._tables.admit(request, match)
        if join is None:
            return None
        self._queue.remove(request.request_id)
        request.move_to(RequestState.PREFILL)
        insort(self._running, request, key=lambda r: r.key)
        draft.joins.append(join)
        if request.admissions == 0:
            request.cached_tokens = min(request.num_computed, request.num_prompt_tokens)
            request.queue_s = now - request.arrival_s
            self.counters.prompt_tokens += request.num_prompt_tokens
            self.counters.cached_tokens += request.cached_tokens
        request.admissions += 1
        return True

    def _fits(self, request: Request, match: Match, gain: int, rows: int) -> bool:
        """Room for the tokens it has, some it will make, and a block for each of `rows` beside it.

        gain: blocks that would be available on top, if others left.
        """
        needed = self._tables.blocks_needed(request, match)
        available = self.cache.blocks.num_available + gain
        if not rows:
            return needed <= available
        more = min(request.max_tokens - request.num_generated, _LOOKAHEAD_TOKENS * (1 + request.admissions))
        ahead = blocks_for(len(request.tokens) + more) - blocks_for(len(request.tokens))
        return needed + ahead + rows <= available

    # ---- update --------------------------------------------------------------------------------

    def update(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Take in the outcome of the oldest plan in flight; the deltas to deliver, in plan order."""
        if result.step_id != plan.step_id:
            raise ValueError(f"result of step {result.step_id} offered for plan {plan.step_id}")
        units = self._units.pop(plan.step_id)
        if result.skipped or result.error is not None:
            return self._step_failed(plan, result)
        self.counters.steps += 1
        self._times.observe(result.duration_s, units)
        deltas = []
        sampled = iter(result.sampled)
        for segment in plan.segments:
            if segment.sample:
                delta = self._take_token(self._requests[segment.request_id], next(sampled))
                if delta is not None:
                    deltas.append(delta)
        return deltas

    def _take_token(self, request: Request, token: SampledToken) -> TokenDelta | None:
        request.in_flight -= 1
        if request.state is RequestState.FINISHED:
            self._forget_if_over(request)  # an overrun token: not counted, not delivered
            return None
        request.tokens.append(token.token_id)
        if self._is_stop(request, token.token_id):
            return self._finish_at(request, FinishReason.STOP, None)
        self.counters.generated_tokens += 1
        if request.num_generated >= request.max_tokens:
            return self._finish_at(request, FinishReason.LENGTH, token)
        return _delta(request, token, None, None)

    def _is_stop(self, request: Request, token_id: int) -> bool:
        sampling = request.sampling
        if token_id in self.config.eos_token_ids and not sampling.ignore_eos:
            return True
        return token_id in sampling.stop_token_ids

    def _finish_at(self, request: Request, reason: FinishReason, token: SampledToken | None) -> TokenDelta:
        if self._last_finish_s is not None:
            gap_s = max(self._now - self._last_finish_s, 0.0)
            self._finish_gap_s += 0.2 * (gap_s - self._finish_gap_s)
        self._last_finish_s = self._now
        return self._finish(request, reason, token=token)

    def _step_failed(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Nothing of the plan took effect, and the runner has dropped every row.

        A failed step ends the requests it computed; all others start again from the cache. A plan that
        was skipped behind it only gives back what it had promised.
        """
        self._recovering = True
        self._tables.undo_commits(plan.commits)
        samples = {s.request_id for s in plan.segments if s.sample}
        for request_id in samples:
            self._requests[request_id].in_flight -= 1
        deltas = []
        if not result.skipped:
            self.counters.failed_steps += 1
            for segment in plan.segments:
                request = self._requests.get(segment.request_id)
                if request is not None and request.state is not RequestState.FINISHED:
                    deltas.append(self._finish(request, FinishReason.ERROR, result.error))
        self._reset_rows()
        for request_id in samples:
            if (request := self._requests.get(request_id)) is not None:
                self._forget_if_over(request)
        return deltas

    def _reset_rows(self) -> None:
        for request in self._running:
            self._tables.release(request)
            request.move_to(RequestState.WAITING)
            self._queue.push(request.request_id, request.key)
        self._running = []
        ended, self._ending = self._ending, []
        for request in ended:
            self._tables.release(request)
            self._forget_if_over(request)

    # ---- observation ---------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """A snapshot of the counters; the device's own figures are added by the engine."""
        blocks, counters = self.cache.blocks, self.counters
        return EngineStats(
            running=len(self._running),
            waiting=len(self._queue),
            blocks_used=blocks.num_used,
            blocks_cached=blocks.num_cached,
            blocks_free=blocks.num_free,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            generated_tokens=counters.generated_tokens,
            preemptions=counters.preemptions,
            evictions=blocks.evictions,
            steps=counters.steps,
            failed_steps=counters.failed_steps,
            requests_finished=counters.requests_finished,
        )

    def check_invariants(self) -> None:
        """Raise unless tables, references and the cache agree. O(blocks + running)."""
        self.cache.check_invariants()
        held: dict[int, int] = {}
        for request in [*self._running, *self._ending]:
            for block in request.block_table:
                held[block] = held.get(block, 0) + 1
            if request.num_committed % BLOCK_SIZE and request.is_running:
                raise RuntimeError(f"{request.request_id} committed part of a block while running")
        for block in range(self.config.num_blocks):
            if self.cache.blocks.ref_count(block) != held.get(block, 0):
                raise RuntimeError(f"block {block}: references and block tables disagree")
        if [r.key for r in self._running] != sorted(r.key for r in self._running):
            raise RuntimeError("running requests are not in key order")
        if len(self._running) > self.config.max_num_seqs:
            raise RuntimeError("more rows than max_num_seqs")


def _plan_decode(request: Request, draft: _Draft) -> None:
    position = request.num_computed
    known = position < len(request.tokens)
    draft.segments.append(
        Segment(
            request.request_id,
            position,
            (request.tokens[position],) if known else None,
            True,
            request.num_planned,
        )
    )
    request.num_computed = position + 1
    request.in_flight += 1
    draft.num_tokens += 1


def _plan_chunk(request: Request, chunk: int, draft: _Draft) -> None:
    start, end = request.num_computed, request.num_computed + chunk
    last = end == len(request.tokens)
    draft.segments.append(
        Segment(request.request_id, start, tuple(request.tokens[start:end]), last, request.num_generated)
    )
    request.num_computed = end
    draft.num_tokens += chunk
    if last:
        request.in_flight += 1
        request.move_to(RequestState.DECODE)


def _delta(request: Request, token: SampledToken | None, reason: FinishReason | None, error: str | None) -> TokenDelta:
    return TokenDelta(
        request_id=request.request_id,
        token_ids=(token.token_id,) if token is not None else (),
        logprobs=(token.logprob,) if token is not None and token.logprob is not None else (),
        finish_reason=reason,
        error=error,
        cached_tokens=request.cached_tokens,
        queue_s=request.queue_s,
    )
