"""The scheduler: who computes what in the next step. No await, no clock, no thread, no log call.

A step has a budget of tokens. Running decodes come first; what is left goes to prefill chunks in queue
order, sized by predicted time (token budget and mixed batches as in vLLM and Sarathi-Serve, arXiv
2403.02310). When memory is short: evict cached blocks, then queue, then preempt the running request with
the largest key, by recompute, with its blocks kept in the cache.
"""

from __future__ import annotations

import math

from mlx_server.core.errors import ContextLengthError, MemoryPressureError, RequestError
from mlx_server.core.messages import (
    EngineStats,
    FinishReason,
    GenerateRequest,
    MemoryLevel,
    Priority,
    SamplingParams,
    TokenDelta,
)
from mlx_server.core.step import BLOCK_SIZE, Resize, SampledToken, StepPlan, StepResult
from mlx_server.services.batching.admission import Admission, Outcome
from mlx_server.services.batching.block_manager import BlockAccountingError
from mlx_server.services.batching.block_tables import BlockTables
from mlx_server.services.batching.config import Counters, SchedulerConfig
from mlx_server.services.batching.culprits import clear_of_doubt, culprits
from mlx_server.services.batching.fair_share import FairShare
from mlx_server.services.batching.plan_draft import PlanDraft
from mlx_server.services.batching.pool_size import PoolSize
from mlx_server.services.batching.prefill_budget import PrefillBudget
from mlx_server.services.batching.prefix_cache import PrefixCache, root_hash
from mlx_server.services.batching.queue_limits import QueueLimits
from mlx_server.services.batching.request import Request, RequestState
from mlx_server.services.batching.request_queue import queue_key
from mlx_server.services.batching.request_sets import RequestSets
from mlx_server.services.batching.step_time import StepTimePredictor, prefill_units

TAIL_CAPACITY = 64
"""Tokens a decoding row's tail holds before it must be committed: two blocks."""

STAGE_CAPACITY = 512
"""Tokens a prefilling row stages before they are committed: a barrier every few chunks, not every one."""

_MAX_DEFERRED = 64
_MAX_NEW_BLOCKS_HASHED = 4096  # in one step: some milliseconds


class Scheduler:
    """Owns every `Request`. `schedule` may be called again before `update` of the plan it returned, but
    not twice: at most one plan is in flight while the next is made.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        initial = config.num_blocks if config.initial_blocks is None else config.initial_blocks
        self.cache = PrefixCache(initial, enabled=config.prefix_cache)
        self.size = PoolSize(initial, config.num_blocks)
        self.counters = Counters()
        self._tables = BlockTables(self.cache)
        self._limits = QueueLimits(config.max_queue, config.max_queue_per_tenant)
        self._sets = RequestSets(self._tables, self.counters, self._limits)
        self._shares = FairShare()
        self._admission = Admission(config, self._sets, self._tables, self.counters, self.size)
        self._times = StepTimePredictor()
        self._undelivered: list[TokenDelta] = []
        self._units: dict[int, float] = {}  # step id -> prefill units, of the plans in flight
        self._seq = 0
        self._step_id = 0
        self._twins_wait = False
        self._recovering = False
        self._finish_gap_s = 1.0
        self._last_finish_s: float | None = None
        self._now = 0.0

    # ---- requests in and out -------------------------------------------------------------------

    def add(self, message: GenerateRequest, now: float) -> None:
        """Queue a request. Raises `QueueFullError`, `ContextLengthError` or `RequestError`.

        One that was interrupted has been let in before: it keeps the place of its arrival, and no queue is too full.
        """
        prompt_len = len(message.prompt_token_ids)
        if prompt_len == 0:
            raise RequestError("the prompt is empty; at least one token is needed", field="prompt")
        if prompt_len >= self.config.max_model_len:
            raise ContextLengthError(self.config.max_model_len, prompt_len)
        if message.sampling.max_tokens < 1:
            raise RequestError("max_tokens must be at least 1", field="max_tokens")
        if message.request_id in self._sets:
            raise RequestError(f"request id {message.request_id!r} is in use", field="request_id")
        max_tokens = min(message.sampling.max_tokens, self.config.max_model_len - prompt_len)
        if len(message.generated_token_ids) >= max_tokens:
            raise RequestError("every token that was asked for is generated already", field="generated_token_ids")
        if any(self._is_stop(message.sampling, token_id) for token_id in message.generated_token_ids):
            raise RequestError("an end token is generated already", field="generated_token_ids")
        priority, arrival_s = Priority(message.priority), now
        if message.arrival_s is not None:
            arrival_s = min(message.arrival_s, now)
        else:
            if not self.size.admits:
                raise MemoryPressureError
            self._limits.check(priority, message.tenant, max(1, math.ceil(self._finish_gap_s)))
        self._seq += 1
        charge = self._shares.charge(
            message.tenant, priority, arrival_s, prompt_len, max_tokens, self._limits.tenants_wait
        )
        key = queue_key(charge.start_s, priority, self._seq)
        root = root_hash(self.config.model_identity, message.cache_salt)
        request = Request.create(message, key, arrival_s, root, max_tokens)
        request.charge = charge
        self._sets.add(request)

    def cancel(self, request_id: str) -> bool:
        """End a request wherever it is; its blocks are free at the next `schedule`. False: not alive."""
        request = self._sets.get(request_id)
        if request is None or request.state is RequestState.FINISHED:
            return False
        self._undelivered.append(self._finish(request, FinishReason.ABORT))
        return True

    def set_memory_level(self, level: MemoryLevel) -> None:
        """Give memory back as the level asks, from the next `schedule` on."""
        self.size.set_level(level, self.cache.blocks.num_used)

    def take_undelivered(self) -> list[TokenDelta]:
        """Deltas of requests that ended outside `update` (cancelled ones)."""
        deltas, self._undelivered = self._undelivered, []
        return deltas

    @property
    def has_work(self) -> bool:
        """Whether `schedule` has, or will have after the next `update`, something to plan."""
        return bool(self._sets.waiting or self._sets.running or self._sets.ending)

    def _finish(
        self, request: Request, reason: FinishReason, error: str | None = None, token: SampledToken | None = None
    ) -> TokenDelta:
        self._sets.finish(request)
        used = request.num_generated + (request.num_prompt_tokens - request.cached_tokens if request.admissions else 0)
        self._shares.settle(request.tenant, request.priority, request.charge, used)
        return _delta(request, token, reason, error)

    # ---- schedule ------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step, or None when nothing can be planned before the next `update` or `add`.

        After a failed step nothing is planned until every plan in flight has come back.
        """
        self._now = now
        if self._recovering and self._units:
            return None
        self._recovering = False
        if (size := self._wanted_size()) is not None:
            return self._plan_resize(size)
        draft = PlanDraft()
        self._sets.plan_endings(draft)
        self._admission.make_room_for_head(draft)
        self._plan_decodes(draft)
        units = self._plan_prefills(draft, now)
        if draft.is_empty() and (size := self._wanted_size()) is not None:
            return self._plan_resize(size)  # somebody asked for it just now
        return self._planned(draft, units)

    def _wanted_size(self) -> int | None:
        return self.size.target(self.cache.blocks, len(self._sets.running))

    def _planned(self, draft: PlanDraft, units: float = 0.0) -> StepPlan | None:
        if draft.is_empty():
            return None
        self._step_id += 1
        self._units[self._step_id] = units
        return draft.build(self._step_id)

    def _plan_resize(self, size: int) -> StepPlan | None:
        """Alone in its plan, and with nothing in flight; before it, whoever has to leave for it does."""
        if self._units:
            return None
        draft = PlanDraft()
        self._sets.plan_endings(draft)
        blocks = self.cache.blocks
        while blocks.num_used > size and self._sets.running:
            self._sets.preempt(self._sets.running[-1], draft)
        if not draft.is_empty():
            return self._planned(draft)
        self.cache.evict_to(size)
        moves = blocks.moves_for(size)
        if moves is None:
            raise BlockAccountingError(f"{blocks.num_used} blocks are held by nobody who could leave")
        draft.resize = Resize(size, moves, self.size.is_short)
        return self._planned(draft)

    def _plan_decodes(self, draft: PlanDraft) -> None:
        running = self._sets.running
        i = 0
        while i < len(running):
            request = running[i]
            if request.wants_decode:
                while request.is_running and not self._tables.grow(request):
                    self._sets.preempt(running[-1], draft)
                if not request.is_running:
                    break  # it was the least important itself; nobody is behind it
            i += 1
        self._plan_commits(draft)
        for request in running:
            if request.wants_decode:
                draft.add_decode(request)

    def _plan_commits(self, draft: PlanDraft) -> None:
        """A commit is a barrier, so when one row must be committed all rows with a full block are."""
        due = bool(draft.commits) or self._twins_wait
        for request in self._sets.running:
            if due:
                break
            capacity = TAIL_CAPACITY if request.state is RequestState.DECODE else STAGE_CAPACITY
            due = request.tail_len >= capacity
        if due:
            for request in self._sets.running:
                if request.tail_len >= BLOCK_SIZE:
                    draft.add_commit(self._tables.commit(request))

    def _plan_prefills(self, draft: PlanDraft, now: float) -> float:
        """Chunks in queue order: running prefills and waiting requests merged by key. Units planned."""
        prefilling = [r for r in self._sets.running if r.state is RequestState.PREFILL]
        deferred: list[Request] = []
        tokens = self.config.max_num_batched_tokens - draft.num_tokens
        budget = PrefillBudget(tokens, self._units_allowed(draft))
        planned_units = 0.0
        admitting = len(self._sets.running) < self.config.max_num_seqs
        hashed = self._tables.blocks_hashed
        while budget.tokens > 0 and (request := self._next_prefill(prefilling, admitting)) is not None:
            if request.state is RequestState.WAITING:
                outcome = self._admission.admit(request, draft, now)
                if outcome is not Outcome.ADMITTED:
                    # Rows that prefill go on, also behind a head without room: it may be their twin.
                    admitting = outcome is Outcome.WAITS_FOR_TWIN and self._defer(request, deferred, hashed)
                    continue
                self._shares.served(request.charge)
            others = bool(prefilling) or (admitting and bool(self._sets.waiting))
            chunk = budget.chunk(request.num_computed, len(request.tokens), others_wait=others)
            if chunk == 0:
                break
            planned_units += prefill_units(chunk, request.num_computed)
            budget.take(chunk, request.num_computed)
            draft.add_chunk(request, chunk)
        for request in deferred:
            self._sets.waiting.push(request.request_id, request.key)
        self._twins_wait = bool(deferred)
        return planned_units

    def _defer(self, request: Request, deferred: list[Request], hashed: int) -> bool:
        """Take a request that waits for its twin out of the way for this step. Whether to look at one more."""
        self._sets.waiting.remove(request.request_id)
        deferred.append(request)
        return len(deferred) < _MAX_DEFERRED and self._tables.blocks_hashed - hashed < _MAX_NEW_BLOCKS_HASHED

    def _units_allowed(self, draft: PlanDraft) -> float:
        decoding = bool(draft.segments)
        target_s = self.config.step_target_s * (1 if decoding else 4)
        return self._times.units_within(target_s, decoding=decoding)

    def _next_prefill(self, prefilling: list[Request], admitting: bool) -> Request | None:
        head = self._sets.head() if admitting else None
        if prefilling and (head is None or prefilling[0].key < head.key):
            return prefilling.pop(0)
        return head

    # ---- update --------------------------------------------------------------------------------

    def update(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Take in the outcome of the oldest plan in flight; the deltas to deliver, in plan order."""
        if result.step_id != plan.step_id or plan.step_id != next(iter(self._units), None):
            raise ValueError(f"result of step {result.step_id} offered for plan {plan.step_id}, out of turn")
        units = self._units.pop(plan.step_id)
        if result.skipped or result.error is not None:
            refused = self._resize_failed(plan.resize, result) if plan.resize is not None else []
            return refused + self._step_failed(plan, result)
        if plan.resize is not None:
            self._take_resize(plan.resize)
        self.counters.steps += 1
        self.counters.commits += len(plan.commits)
        if plan.segments:
            self._times.observe(result.duration_s, units)
            self._shares.observe_step(plan.num_tokens, result.duration_s)
        clear_of_doubt(self._sets, plan)
        deltas = []
        sampling = [segment for segment in plan.segments if segment.sample]
        for segment, token in zip(sampling, result.sampled, strict=True):
            delta = self._take_token(self._sets[segment.request_id], token)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def _resize_failed(self, resize: Resize, result: StepResult) -> list[TokenDelta]:
        """A request that cannot run in the pool as it is, and for which memory is refused again and again, ends."""
        head = self._sets.head() if not self._sets.running else None
        if self.size.failed(resize.num_blocks, is_needed=head is not None) or head is None:
            return []
        return [self._finish(head, FinishReason.ERROR, result.error)]

    def _take_resize(self, resize: Resize) -> None:
        self.cache.resize(resize.num_blocks, resize.moves)
        self._tables.move([*self._sets.running, *self._sets.ending], dict(resize.moves))
        self.size.resized(resize.num_blocks)

    def _take_token(self, request: Request, token: SampledToken) -> TokenDelta | None:
        request.in_flight -= 1
        if request.state is RequestState.FINISHED:
            self._sets.forget_if_over(request)  # an overrun token: not counted, not delivered
            return None
        request.tokens.append(token.token_id)
        if self._is_stop(request.sampling, token.token_id):
            return self._finish_at(request, FinishReason.STOP, None)
        self.counters.generated_tokens += 1
        if request.num_generated >= request.max_tokens:
            return self._finish_at(request, FinishReason.LENGTH, token)
        return _delta(request, token, None, None)

    def _is_stop(self, sampling: SamplingParams, token_id: int) -> bool:
        if token_id in self.config.eos_token_ids and not sampling.ignore_eos:
            return True
        return token_id in sampling.stop_token_ids

    def _finish_at(self, request: Request, reason: FinishReason, token: SampledToken | None) -> TokenDelta:
        if self._last_finish_s is not None:
            idle_until_s = max(self._last_finish_s, request.arrival_s)
            gap_s = max(self._now - idle_until_s, 0.0)
            self._finish_gap_s += 0.2 * (gap_s - self._finish_gap_s)
        self._last_finish_s = self._now
        self._shares.observe_answer(request.num_generated)
        return self._finish(request, reason, token=token)

    def _step_failed(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Nothing of the plan took effect, and the runner has dropped every row.

        Who is to blame for a failed step ends with its reason; all others start again from the cache. A plan that
        was skipped behind it only gives back what it had promised.
        """
        self._recovering = True
        self._tables.undo_commits(plan.commits)
        samples = {s.request_id for s in plan.segments if s.sample}
        for request_id in samples:
            self._sets[request_id].in_flight -= 1
        deltas = []
        if not result.skipped:
            self.counters.failed_steps += 1
            for request_id in culprits(self._sets, plan, result):
                request = self._sets.get(request_id)
                if request is not None and request.state is not RequestState.FINISHED:
                    deltas.append(self._finish(request, FinishReason.ERROR, result.error))
        self._sets.reset()
        for request_id in samples:
            if (request := self._sets.get(request_id)) is not None:
                self._sets.forget_if_over(request)
        return deltas

    # ---- observation ---------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """A snapshot of the counters; the device's own figures are added by the engine."""
        blocks, counters = self.cache.blocks, self.counters
        running, waiting = self._sets.by_priority()
        return EngineStats(
            running=len(self._sets.running),
            waiting=len(self._sets.waiting),
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
            commits=counters.commits,
            running_by_priority=running,
            waiting_by_priority=waiting,
            pool_blocks=blocks.num_blocks,
            memory_level=self.size.level,
        )

    def check_invariants(self) -> None:
        """Raise unless tables, references and the cache agree. O(blocks + running)."""
        self.cache.check_invariants()
        running, held = self._sets.running, dict[int, int]()
        for request in [*running, *self._sets.ending]:
            for block in request.block_table:
                held[block] = held.get(block, 0) + 1
            if request.num_committed % BLOCK_SIZE and request.is_running:
                raise RuntimeError(f"{request.request_id} committed part of a block while running")
        for block in range(self.cache.blocks.num_blocks):
            if self.cache.blocks.ref_count(block) != held.get(block, 0):
                raise RuntimeError(f"block {block}: references and block tables disagree")
        if [r.key for r in running] != sorted(r.key for r in running):
            raise RuntimeError("running requests are not in key order")
        if len(running) > self.config.max_num_seqs:
            raise RuntimeError("more rows than max_num_seqs")


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
