"""`Lockstep`: scheduler, generation thread and `TokenPoolRunner`, moved by hand in one thread.

It does what `EngineCore` does, one call at a time, with plans up to one step ahead; the thread is a real
`GenerationThread` that is never started, so its handling of failed and skipped steps is under test too.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mlx_server.core.messages import FinishReason, GenerateRequest, Priority, SamplingParams, TokenDelta
from mlx_server.core.step import StepPlan, StepResult
from mlx_server.engine.generation_thread import GenerationThread
from mlx_server.services.batching.config import SchedulerConfig
from mlx_server.services.batching.scheduler import Scheduler
from tests.fakes.token_pool_runner import FakeModel, TokenPoolRunner, fake_logprob

EOS = FakeModel.eos_token_id


def prompt_of(n: int, seed: int = 0) -> tuple[int, ...]:
    """`n` token ids; equal seeds give equal starts."""
    rng = random.Random(seed)
    return tuple(rng.randrange(3, 30_000) for _ in range(n))


def request(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int = 8,
    priority: Priority = Priority.NORMAL,
    salt: str = "",
    generated: Sequence[int] = (),
    **sampling: Any,
) -> GenerateRequest:
    """Greedy unless `sampling` says otherwise. generated: what it had made when it was interrupted."""
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0} | sampling)),
        priority=priority,
        cache_salt=salt,
        generated_token_ids=tuple(generated),
    )


def scheduler(num_blocks: int = 64, **config: Any) -> Scheduler:
    """A scheduler for a small pool; `config` overrides fields of `SchedulerConfig`."""
    defaults: dict[str, Any] = {
        "model_identity": "fake",
        "max_model_len": min(num_blocks * 32, 1024),
        "eos_token_ids": frozenset({EOS}),
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
    }
    return Scheduler(SchedulerConfig(num_blocks=num_blocks, **(defaults | config)))


class _InlineLoop:
    def call_soon_threadsafe(self, callback: Callable[[Any], None], value: Any) -> None:
        callback(value)


class Lockstep:
    """One engine. `now` is its clock, which only the test moves.

    texts: whole ones: of a request that was interrupted also what it had made before.
    """

    def __init__(self, scheduler: Scheduler, runner: TokenPoolRunner | None = None) -> None:
        config = scheduler.config
        self.scheduler = scheduler
        self.runner = runner or TokenPoolRunner(config.num_blocks, max_num_seqs=config.max_num_seqs)
        self.now = 0.0
        self.requests: dict[str, GenerateRequest] = {}
        self.texts: dict[str, list[int]] = {}
        self.ends: dict[str, TokenDelta] = {}
        self.plans: list[StepPlan] = []
        self.failed_plans: list[StepPlan] = []
        self.in_flight: deque[StepPlan] = deque()
        self.submitted: deque[tuple[StepPlan, int]] = deque()
        self.results: deque[StepResult] = deque()
        self._epoch = 0
        self._thread = GenerationThread(
            lambda: (self.runner, self.runner.info(max_model_len=config.max_model_len)),
            _InlineLoop(),  # type: ignore[arg-type]
            on_loaded=lambda info: None,
            on_failed=_reraise,
            on_result=self.results.append,
        )

    # ---- one move --------------------------------------------------------------------------------

    def add(self, message: GenerateRequest) -> None:
        """Raises what `Scheduler.add` raises."""
        self.scheduler.add(message, self.now)
        self.requests[message.request_id] = message
        self.texts[message.request_id] = list(message.generated_token_ids)

    def cancel(self, request_id: str) -> bool:
        """As `EngineCore.cancel`."""
        alive = self.scheduler.cancel(request_id)
        self._deliver(self.scheduler.take_undelivered())
        return alive

    def schedule(self) -> StepPlan | None:
        """Plan a step and submit it; at most one may be in flight."""
        assert len(self.in_flight) < 2
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            self.plans.append(plan)
            self.in_flight.append(plan)
            self.submitted.append((plan, self._epoch))
        return plan

    def execute(self) -> bool:
        """The thread takes the next plan; its result may come with the one after it."""
        if not self.submitted:
            return False
        self._thread._execute(self.runner, *self.submitted.popleft())
        return True

    def drain(self) -> None:
        """The thread finishes the step in flight."""
        self._thread._finish(self.runner)

    def update(self) -> bool:
        """Hand the oldest result to the scheduler."""
        if not self.results:
            return False
        plan, result = self.in_flight.popleft(), self.results.popleft()
        self._deliver(self.scheduler.update(plan, result))
        if result.error is not None:
            self._epoch += 1
            self.failed_plans.append(plan)
        return True

    # ---- many ------------------------------------------------------------------------------------

    def step(self) -> StepPlan | None:
        """Plan a step, with the one before it possibly still in flight, then take in what has ended."""
        plan = self.schedule() if len(self.in_flight) < 2 else None
        while self.execute():
            pass
        if plan is None:
            self.drain()
        while self.update():
            pass
        return plan

    def step_alone(self) -> StepPlan | None:
        """Plan a step, run it and take in its result: nothing stays in flight."""
        plan = self.step()
        self.drain()
        while self.update():
            pass
        return plan

    def finish(self, max_steps: int = 5_000) -> None:
        """Until nothing is left to do. Fails when that takes too long: no progress is a bug."""
        for _ in range(max_steps):
            busy = bool(self.in_flight)
            if self.step() is None and not busy:
                waiting = set(self.requests) - set(self.ends)
                assert not waiting, f"nothing can be planned and {waiting} wait"
                return
        raise AssertionError(f"still working after {max_steps} steps: {self.scheduler.stats()}")

    # ---- what came out ---------------------------------------------------------------------------

    def expected(self, request_id: str) -> tuple[list[int], FinishReason]:
        """Text and reason the request would have had alone."""
        message = self.requests[request_id]
        room = self.scheduler.config.max_model_len - len(message.prompt_token_ids)
        n = min(message.sampling.max_tokens, room)
        return self.runner.model.reference_text(message.prompt_token_ids, message.sampling, n)

    def check_text(self, request_id: str) -> None:
        """A completed text is the reference; one that was cut short is a start of it."""
        text, reason = self.expected(request_id)
        end, got = self.ends[request_id].finish_reason, self.texts[request_id]
        if end in (FinishReason.STOP, FinishReason.LENGTH):
            assert (got, end) == (text, reason), request_id
        else:
            assert got == text[: len(got)], request_id

    def check_over(self) -> None:
        """Every request ended with its text, and nothing is held any more."""
        assert self.runner.violations == []
        assert set(self.ends) == set(self.requests)
        for request_id in self.requests:
            self.check_text(request_id)
        self.scheduler.check_invariants()
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        assert stats.requests_finished == len(self.requests)
        assert not self.scheduler.has_work
        assert self.runner.rows == {}

    def _deliver(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.ends, f"{delta.request_id} gets more after its end"
            message, text = self.requests[delta.request_id], self.texts[delta.request_id]
            if message.sampling.top_logprobs is not None:
                first = len(message.prompt_token_ids) + len(text)
                expected = [fake_logprob(t, first + i) for i, t in enumerate(delta.token_ids)]
                assert [p.logprob for p in delta.logprobs] == expected
            text.extend(delta.token_ids)
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta


def elastic(
    initial: int, num_blocks: int, model: FakeModel | None = None, *, overlaps: bool = True, **config: Any
) -> Lockstep:
    """An engine whose pool starts with `initial` blocks and may have `num_blocks`."""
    made = scheduler(num_blocks, initial_blocks=initial, **config)
    return Lockstep(made, TokenPoolRunner(initial, model, max_num_seqs=made.config.max_num_seqs, overlaps=overlaps))


def lockstep(num_blocks: int = 64, model: FakeModel | None = None, *, overlaps: bool = True, **config: Any) -> Lockstep:
    """An engine on a small pool; `config` overrides fields of `SchedulerConfig`."""
    made = scheduler(num_blocks, **config)
    runner = TokenPoolRunner(num_blocks, model, max_num_seqs=made.config.max_num_seqs, overlaps=overlaps)
    return Lockstep(made, runner)


def _reraise(error: BaseException) -> None:
    raise error
