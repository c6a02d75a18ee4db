"""Whatever makes steps fail, and however often: only those to blame end with an error, all others with their text."""

from __future__ import annotations

import logging
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_server.core.blame import MAX_FAILURES
from mlx_server.core.messages import FinishReason, Priority
from mlx_server.core.step import StepPlan
from tests.fakes.lockstep import Lockstep, lockstep, prompt_of, request

logging.getLogger("mlx_server.engine.generation_thread").setLevel(logging.CRITICAL)  # steps fail by the thousand

MOST_FAILURES = 5  # of one request (see core/blame.py)


class Play:
    """A dozen requests on a small pool, moved by a random number generator, a step ahead and not."""

    def __init__(self, engine: Lockstep, rng: random.Random, *, transients: int, cancels: bool) -> None:
        self.engine = engine
        self.rng = rng
        self.transients = transients
        self.cancels = cancels
        self.hit_alone: Counter[str] = Counter()
        self.transient_steps: dict[int, StepPlan] = {}

    def add(self, name: str) -> None:
        config, rng = self.engine.scheduler.config, self.rng
        prompt = [*prompt_of(rng.choice([0, 32, 70])), *prompt_of(rng.randrange(1, 60), rng.randrange(10**6))]
        kind = {"temperature": rng.choice([0.0, 1.0]), "seed": rng.randrange(3)}
        self.engine.add(request(name, prompt, rng.randrange(1, 120), rng.choice(list(Priority)), **kind))
        last = min(len(prompt) + self.engine.requests[name].sampling.max_tokens, config.max_model_len) - 1
        if rng.random() < 0.2:
            self.engine.runner.poison[name] = rng.randrange(1, last + 1)
        elif rng.random() < 0.05:
            self.engine.runner.bad_rows.add(name)

    def run(self, requests: int = 14) -> None:
        for i in range(requests):
            self.add(f"r{i}")
            self.engine.now += self.rng.random() * 2
            for _ in range(self.rng.randrange(10)):
                self.move()
        for _ in range(3000):
            if set(self.engine.ends) == set(self.engine.requests):
                break
            self.move()
        self.engine.finish()

    def move(self) -> None:
        engine, rng = self.engine, self.rng
        if len(engine.in_flight) < 2 and rng.random() < 0.8:
            self.maybe_hit(engine.schedule())
        if rng.random() < 0.8:
            engine.execute()
        if rng.random() < 0.5:
            engine.drain()
        while engine.results and rng.random() < 0.8:
            self.count_hit()
            engine.update()
        if self.cancels and rng.random() < 0.01:
            engine.cancel(rng.choice(list(engine.requests)))
        engine.scheduler.check_invariants()

    def maybe_hit(self, plan: StepPlan | None) -> None:
        if plan is not None and self.transients > 0 and self.rng.random() < 0.08:
            runner = self.engine.runner
            self.rng.choice([runner.fail_launch, runner.fail_finish]).add(plan.step_id)
            self.transient_steps[plan.step_id] = plan
            self.transients -= 1

    def count_hit(self) -> None:
        result = self.engine.results[0]
        plan = self.transient_steps.get(result.step_id)
        if plan is None or result.error is None:
            return
        alive = {p.request_id for p in (*plan.segments, *plan.joins, *plan.commits)} - set(self.engine.ends)
        if len(alive) == 1:
            self.hit_alone.update(alive)

    @property
    def guilty(self) -> set[str]:
        return set(self.engine.runner.poison) | self.engine.runner.bad_rows

    def errors(self) -> set[str]:
        return {name for name, end in self.engine.ends.items() if end.finish_reason is FinishReason.ERROR}


@st.composite
def plays(draw: st.DrawFn, *, transients: int = 0, cancels: bool = False) -> Play:
    num_blocks, max_num_seqs = draw(st.integers(6, 20)), draw(st.integers(1, 6))
    engine = lockstep(
        num_blocks,
        overlaps=draw(st.booleans()),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + 32 + draw(st.integers(0, 100)),
        max_model_len=min(num_blocks * 32, 320),
        prefix_cache=draw(st.booleans()),
    )
    return Play(engine, random.Random(draw(st.integers(0, 10**6))), transients=transients, cancels=cancels)


@given(plays())
@settings(deadline=None, derandomize=True, max_examples=60)
def test_those_to_blame_end_with_an_error_and_nobody_else(play: Play) -> None:
    play.run()
    play.engine.check_over()
    assert play.errors() == play.guilty
    most = MOST_FAILURES * len(play.engine.runner.poison) + len(play.engine.runner.bad_rows)
    assert play.engine.scheduler.stats().failed_steps <= most


@given(plays(transients=12, cancels=True))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_failures_without_a_cause_fail_nobody(play: Play) -> None:
    """But one whom they hit twice with nothing else in the step: it looks as if it had failed by itself."""
    play.run()
    play.engine.check_over()
    for name in play.errors() - play.guilty:
        assert play.hit_alone[name] >= MAX_FAILURES, name
    for name in play.guilty - play.errors():
        assert play.engine.ends[name].finish_reason is FinishReason.ABORT, name
