"""Who gives way when memory or rows are short, and when it comes back."""

from __future__ import annotations

import logging

import pytest

from mlx_server.core.messages import Priority
from mlx_server.core.step import StepPlan
from tests.fakes.lockstep import Lockstep, lockstep, prompt_of, request

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW


class Rows:
    """Follows the plans of an engine: who runs, and who was made to leave unfinished."""

    def __init__(self, engine: Lockstep) -> None:
        self.engine = engine
        self.running: list[str] = []
        self.joined: list[str] = []
        self.preempted: list[str] = []
        self.others_at_preemption: list[set[str]] = []

    def step(self) -> StepPlan | None:
        plan = self.engine.step()
        if plan is None:
            return None
        ended = set(self.engine.ends)
        for request_id in plan.leaves:
            self.running.remove(request_id)
            if request_id not in ended:
                self.preempted.append(request_id)
                self.others_at_preemption.append(set(self.running))
        self.running += [j.request_id for j in plan.joins]
        self.joined += [j.request_id for j in plan.joins]
        return plan

    def finish(self) -> None:
        for _ in range(3000):
            busy = bool(self.engine.in_flight)
            if self.step() is None and not busy:
                return
        raise AssertionError("still working")


def crowded(num_blocks: int = 15, **config: object) -> Rows:
    """Five requests that fit at admission and outgrow the pool."""
    engine = lockstep(num_blocks, max_num_seqs=5, **config)
    for i in range(5):
        engine.add(request(f"r{i}", prompt_of(20, seed=i), max_tokens=190))
    return Rows(engine)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_largest_key_gives_way_and_the_smallest_never(prefix_cache: bool) -> None:
    rows = crowded(prefix_cache=prefix_cache)
    rows.finish()
    rows.engine.check_over()
    assert len(rows.preempted) > 2
    assert "r0" not in rows.preempted
    for victim, others in zip(rows.preempted, rows.others_at_preemption, strict=True):
        assert victim > max(others, default=""), f"{victim} gave way to {others}"


def test_little_is_computed_twice() -> None:
    """Blocks of a preempted request stay in the cache, so it resumes where it was, at most one token back."""
    engine = lockstep(64, max_num_seqs=1)
    engine.add(request("low", prompt_of(100), max_tokens=80, priority=LOW))
    for _ in range(40):
        engine.step()
    engine.add(request("high", prompt_of(30, 1), priority=HIGH))
    engine.finish()
    engine.check_over()
    (again,) = [j for p in engine.plans for j in p.joins if j.request_id == "low"][1:]
    assert again.tail_source is not None
    known = len(again.block_ids) * 32 + again.tail_source[1]
    assert known == len(again.history) - 1
    assert len(again.history) > 120


def test_a_preempted_request_comes_back_before_newcomers_of_its_rank() -> None:
    rows = crowded()
    while not rows.preempted:
        rows.step()
    victim = rows.preempted[0]
    rows.engine.add(request("newcomer", prompt_of(5, seed=50), max_tokens=4))
    rows.finish()
    rows.engine.check_over()
    assert rows.joined.index("newcomer") > rows.joined.index(victim, rows.joined.index(victim) + 1)


def test_nobody_passes_a_preempted_request_whose_token_is_on_its_way() -> None:
    """It cannot come back in the same step. A small one behind it took the room, only to be preempted for it."""
    engine = lockstep(21, max_num_seqs=5, max_model_len=256)
    rows = Rows(engine)
    for i, n in enumerate((20, 40, 60, 80, 100)):
        engine.add(request(f"r{i}", prompt_of(n, seed=i), max_tokens=150))
    rows.step()
    engine.add(request("small", prompt_of(5, seed=50), max_tokens=4))
    rows.finish()
    engine.check_over()
    assert rows.preempted[0] == "r4"
    assert rows.joined.count("small") == 1
    assert rows.joined.index("small") > rows.joined.index("r4", 5)


def test_a_preempted_request_is_not_readmitted_ahead_of_a_more_important_one() -> None:
    rows = crowded()
    while not rows.preempted:
        rows.step()
    victim = rows.preempted[0]
    rows.engine.add(request("high", prompt_of(5, seed=50), max_tokens=4, priority=HIGH))
    rows.finish()
    rows.engine.check_over()
    assert rows.joined.index("high") < rows.joined.index(victim, 5)


def test_a_more_important_arrival_takes_the_row_of_the_least_important() -> None:
    engine = lockstep(max_num_seqs=2)
    rows = Rows(engine)
    engine.add(request("normal", prompt_of(20, 1), max_tokens=60))
    engine.add(request("low", prompt_of(20, 2), max_tokens=60, priority=LOW))
    for _ in range(5):
        rows.step()
    engine.add(request("high", prompt_of(20, 3), priority=HIGH))
    plan = rows.step()
    assert plan is not None
    assert plan.leaves == ("low",)
    assert [j.request_id for j in plan.joins] == ["high"]
    rows.finish()
    engine.check_over()
    assert rows.preempted == ["low"]


def test_a_more_important_arrival_takes_the_blocks_it_needs_and_no_more() -> None:
    engine = lockstep(16, max_num_seqs=4)
    rows = Rows(engine)
    engine.add(request("r1", prompt_of(100, 1), max_tokens=40))
    engine.add(request("r2", prompt_of(100, 2), max_tokens=40))
    engine.add(request("r3", prompt_of(100, 3), max_tokens=40, priority=LOW))
    for _ in range(5):
        rows.step()
    before = list(rows.running)
    engine.add(request("high", prompt_of(100, 4), max_tokens=40, priority=HIGH))
    plan = rows.step()
    assert plan is not None
    assert plan.leaves == (before[-1],)
    assert [j.request_id for j in plan.joins] == ["high"]
    rows.finish()
    engine.check_over()


def test_nobody_gives_way_to_an_arrival_that_would_not_fit_even_then() -> None:
    """The more important row that stays holds most of the pool; the others must not lose theirs for nothing."""
    engine = lockstep(16, max_num_seqs=4, max_model_len=512)
    rows = Rows(engine)
    engine.add(request("big", prompt_of(250, 1), max_tokens=100, priority=HIGH))
    engine.add(request("low", prompt_of(20, 2), max_tokens=30, priority=LOW))
    while "low" not in rows.running:
        rows.step()
    engine.add(request("huge", prompt_of(300, 3), max_tokens=5))
    rows.finish()
    engine.check_over()
    assert rows.preempted == []


def test_an_equal_arrival_takes_nothing() -> None:
    engine = lockstep(max_num_seqs=1)
    rows = Rows(engine)
    engine.add(request("first", prompt_of(20, 1), max_tokens=40))
    rows.step()
    engine.now = 3.0
    engine.add(request("second", prompt_of(20, 2), max_tokens=40))
    rows.finish()
    engine.check_over()
    assert rows.joined == ["first", "second"]
    assert rows.preempted == []


def test_low_requests_get_their_turn_under_a_stream_of_important_ones() -> None:
    engine = lockstep(max_num_seqs=1)
    engine.add(request("low", prompt_of(20), max_tokens=20, priority=LOW))
    for i in range(40):
        engine.add(request(f"h{i}", prompt_of(20, i + 1), max_tokens=20, priority=HIGH))
        engine.now += 1.0
        for _ in range(12):
            engine.step()
        if "low" in engine.ends:
            break
    waited = engine.now
    engine.finish()
    engine.check_over()
    assert 20.0 <= waited < 40.0


def test_a_suspect_of_a_failed_step_takes_the_room_of_anybody(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else may start before it is tried: all would wait until a long answer is over."""
    caplog.set_level(logging.CRITICAL, logger="mlx_server.engine.generation_thread")
    engine = lockstep(8, prefix_cache=False)
    engine.add(request("long", prompt_of(90, 1), max_tokens=150))
    engine.add(request("big", prompt_of(60, 2), max_tokens=150))
    plan = engine.schedule()
    assert plan is not None
    assert [j.request_id for j in plan.joins] == ["long", "big"]
    engine.runner.fail_finish.add(plan.step_id)
    engine.step_alone()
    engine.add(request("new", prompt_of(10, 3), max_tokens=1, priority=HIGH))
    while "new" not in engine.ends:
        engine.step_alone()
    assert len(engine.texts["long"]) < 20
    engine.finish()
    engine.check_over()
