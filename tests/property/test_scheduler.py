"""Whatever happens to a request, its text is the one it would have had alone, and it ends exactly once."""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from mlx_server.core.blame import MAX_FAILURES
from mlx_server.core.errors import MemoryPressureError, QueueFullError
from mlx_server.core.messages import FinishReason, GenerateRequest, MemoryLevel, Priority
from tests.fakes.lockstep import Lockstep, elastic, lockstep, prompt_of, request
from tests.fakes.token_pool_runner import FakeModel

logging.getLogger("mlx_server.engine.generation_thread").setLevel(logging.CRITICAL)  # steps fail by the thousand

DOCUMENTS = [prompt_of(200, seed) for seed in range(3)]

lengths = st.one_of(st.integers(0, 140), st.sampled_from([0, 31, 32, 33, 63, 64, 65, 95, 96, 127, 128]))


class SchedulerMachine(RuleBasedStateMachine):
    """Plans are made, executed and taken in in any legal interleaving, on pools too small for the work."""

    @initialize(
        num_blocks=st.integers(4, 12),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(0, 100),
        prefix_cache=st.sampled_from([True, True, True, False]),
        eos_one_in=st.sampled_from([0, 0, 7, 40]),
        max_queue=st.sampled_from([3, 50]),
        slow=st.booleans(),
        overlaps=st.booleans(),
        opening=st.integers(0, 8),
        starts_with=st.sampled_from([1, 1, 2, 4]),
    )
    def start(
        self,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        prefix_cache: bool,
        eos_one_in: int,
        max_queue: int,
        slow: bool,
        overlaps: bool,
        opening: int,
        starts_with: int,
    ) -> None:
        self.engine = elastic(
            max(1, num_blocks // starts_with),
            num_blocks,
            FakeModel(eos_one_in=eos_one_in),
            overlaps=overlaps,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + 32 + budget,
            max_model_len=min(num_blocks * 32, 320),
            max_queue=max_queue,
            prefix_cache=prefix_cache,
            step_target_s=0.001 if slow else 0.12,
        )
        self.count = 0
        self.transients = 0
        self.cancels = 0
        self.add_a_burst(opening, seed=opening)

    @rule(
        document=st.integers(0, 2),
        shared=lengths,
        own=st.integers(0, 40),
        max_tokens=st.one_of(st.integers(1, 5), st.integers(20, 200)),
        priority=st.sampled_from(Priority),
        salt=st.sampled_from(["", "", "", "tenant"]),
        temperature=st.sampled_from([0.0, 1.0]),
        extra=st.sampled_from([{}, {"ignore_eos": True}, {"min_tokens": 5}, {"presence_penalty": 1.0}]),
        logprobs=st.sampled_from([None, 0]),
        later=st.sampled_from([0.0, 0.1, 7.0]),
        done=st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.5, 1.0]),
        breaks=st.sampled_from([None, None, None, None, "launch", "finish", "named"]),
        breaks_at=lengths,
    )
    def add(
        self,
        document: int,
        shared: int,
        own: int,
        max_tokens: int,
        priority: Priority,
        salt: str,
        temperature: float,
        extra: dict,
        logprobs: int | None,
        later: float,
        done: float = 0.0,
        breaks: str | None = None,
        breaks_at: int = 0,
    ) -> None:
        """done: part of its text that it had made before it was interrupted. breaks: how its steps fail, if they do."""
        engine = self.engine
        engine.now += later
        prompt = [*DOCUMENTS[document][:shared], *prompt_of(own, seed=100 + self.count)]
        prompt = prompt[: engine.scheduler.config.max_model_len - 1] or [7]
        message = request(
            f"r{self.count}",
            prompt,
            max_tokens,
            priority,
            salt,
            temperature=temperature,
            seed=self.count % 3,
            top_logprobs=logprobs,
            **extra,
        )
        self.count += 1
        if done:
            message = self.interrupted(message, done)
        try:
            engine.add(message)
        except MemoryPressureError:
            assert engine.scheduler.size.level is MemoryLevel.CRITICAL
        except QueueFullError as error:
            assert engine.scheduler.stats().waiting >= engine.scheduler.config.max_queue
            assert error.retry_after_s >= 1
        else:
            self.poison(message.request_id, breaks, breaks_at)

    def interrupted(self, message: GenerateRequest, done: float) -> GenerateRequest:
        """It comes back with a part of its text, less the token that would have been the last."""
        model, prompt = self.engine.runner.model, message.prompt_token_ids
        n = min(message.sampling.max_tokens, self.engine.scheduler.config.max_model_len - len(prompt))
        text, reason = model.reference_text(prompt, message.sampling, n)
        cut = int(done * (len(text) - (reason is FinishReason.LENGTH)))
        return replace(message, generated_token_ids=tuple(text[:cut]), arrival_s=self.engine.now - 3.0)

    def poison(self, request_id: str, breaks: str | None, at: int) -> None:
        runner = self.engine.runner
        if breaks == "named":
            runner.bad_rows.add(request_id)
        elif breaks is not None:
            (runner.poison_launch if breaks == "launch" else runner.poison)[request_id] = at

    @rule(count=st.integers(2, 8), seed=st.integers(0, 1000))
    def add_a_burst(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(count):
            shared, own = rng.choice([0, 20, 64, 70, 96]), rng.randrange(1, 30)
            extra = rng.choice([{}, {}, {"stop_token_ids": tuple(range(0, 32_000, 50))}])
            priority, max_tokens = rng.choice(list(Priority)), rng.choice([1, 10, 100, 200])
            document, later = rng.randrange(3), rng.choice([0.0, 1.0])
            self.add(document, shared, own, max_tokens, priority, "", rng.choice([0.0, 1.0]), extra, None, later)

    @rule(which=st.integers(0, 1000))
    def cancel(self, which: int) -> None:
        ids = list(self.engine.requests)
        if not ids:
            return
        request_id = ids[which % len(ids)]
        alive = request_id not in self.engine.ends
        assert self.engine.cancel(request_id) == alive
        if alive:
            self.cancels += 1
            assert self.engine.ends[request_id].finish_reason is FinishReason.ABORT

    @rule(level=st.sampled_from([*MemoryLevel, MemoryLevel.NORMAL]))
    def memory_is_short_or_not(self, level: MemoryLevel) -> None:
        self.engine.scheduler.set_memory_level(level)

    @precondition(lambda self: len(self.engine.in_flight) < 2)
    @rule()
    def schedule(self) -> None:
        plan = self.engine.schedule()
        if plan is not None:
            assert plan.num_tokens <= self.engine.scheduler.config.max_num_batched_tokens

    @precondition(lambda self: self.engine.submitted)
    @rule()
    def execute(self) -> None:
        self.engine.execute()

    @rule()
    def drain(self) -> None:
        self.engine.drain()

    @precondition(lambda self: self.engine.results)
    @rule()
    def update(self) -> None:
        self.engine.update()

    @rule(steps=st.integers(1, 40))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @precondition(lambda self: len(self.engine.in_flight) < 2)
    @rule(where=st.sampled_from(["launch", "finish"]))
    def schedule_a_step_that_fails(self, where: str) -> None:
        plan = self.engine.schedule()
        if plan is not None:
            runner = self.engine.runner
            (runner.fail_launch if where == "launch" else runner.fail_finish).add(plan.step_id)
            self.transients += 1

    @invariant()
    def accounts_are_right(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.scheduler.check_invariants()
        assert self.engine.runner.violations == []

    @invariant()
    def nobody_else_ends_with_an_error(self) -> None:
        """But one that failures without a cause have hit twice. (A cause that is cancelled in time is none.)"""
        if not hasattr(self, "engine"):
            return
        runner = self.engine.runner
        guilty = {*runner.bad_rows, *runner.poison_launch, *runner.poison}
        for request_id, end in self.engine.ends.items():
            if end.finish_reason is FinishReason.ERROR and request_id not in guilty:
                failed = [p for p in self.engine.failed_plans if request_id in {s.request_id for s in p.segments}]
                assert len(failed) >= MAX_FAILURES
                assert self.transients + self.cancels >= MAX_FAILURES

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.set_memory_level(MemoryLevel.NORMAL)
            self.engine.finish(max_steps=20_000)
            self.engine.check_over()
            for request_id in self.engine.requests:
                self.check_that_it_did_not_escape(request_id)

    def check_that_it_did_not_escape(self, request_id: str) -> None:
        """A request that completes its text has not been where its steps fail."""
        engine, reason = self.engine, self.engine.ends[request_id].finish_reason
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            length = len(engine.requests[request_id].prompt_token_ids) + len(engine.texts[request_id])
            computed = length - (reason is FinishReason.LENGTH)
            assert request_id not in engine.runner.bad_rows
            assert computed < engine.runner.poison_launch.get(request_id, 10**6)
            assert computed < engine.runner.poison.get(request_id, 10**6)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(deadline=None, derandomize=True, max_examples=120, stateful_step_count=40)


def play(seed: int, engine: Lockstep) -> None:
    """A busy minute, the same for the same seed."""
    rng = random.Random(seed)
    for i in range(60):
        document = rng.choice(DOCUMENTS)
        prompt = [*document[: rng.randrange(1, 150)], *prompt_of(rng.randrange(20), seed=i)]
        engine.now += rng.random() * 3
        engine.add(request(f"r{i}", prompt, rng.randrange(1, 160), rng.choice(list(Priority))))
        if rng.random() < 0.2:
            engine.cancel(f"r{rng.randrange(i + 1)}")
        for _ in range(rng.randrange(8)):
            engine.step()
    engine.finish()


@pytest.mark.parametrize("seed", range(6))
def test_the_same_calls_give_the_same_plans(seed: int) -> None:
    first, second = (lockstep(12, max_num_seqs=5, max_num_batched_tokens=100) for _ in range(2))
    play(seed, first)
    play(seed, second)
    assert first.plans == second.plans
    assert first.scheduler.counters.preemptions > 0, "the play is too easy to prove anything"
    first.check_over()
