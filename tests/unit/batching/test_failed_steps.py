"""A failed step ends the requests it computed. Everybody else goes on, and no block holds what was never written."""

from __future__ import annotations

import logging

import pytest

from mlx_server.core.messages import FinishReason
from mlx_server.core.step import StepPlan
from tests.fakes.lockstep import Lockstep, lockstep, prompt_of, request

TEXT = prompt_of(300)
where = pytest.mark.parametrize("where", ["launch", "finish"])


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="mlx_server.engine.generation_thread")


def fail(engine: Lockstep, plan: StepPlan | None, where: str) -> StepPlan:
    assert plan is not None
    runner = engine.runner
    (runner.fail_launch if where == "launch" else runner.fail_finish).add(plan.step_id)
    return plan


def reasons(engine: Lockstep) -> dict[str, str]:
    return {request_id: str(end.finish_reason) for request_id, end in engine.ends.items()}


@where
def test_its_requests_end_with_an_error_and_others_go_on(where: str) -> None:
    engine = lockstep(max_num_seqs=2)
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        engine.add(request(name, prompt_of(40, seed), max_tokens=30))
    for _ in range(5):
        engine.step_alone()
    fail(engine, engine.schedule(), where)
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "error", "b": "error", "c": "length"}
    error = engine.ends["a"].error
    assert error is not None
    assert f"DeviceError: {where} of step" in error
    assert engine.scheduler.stats().failed_steps == 1


@where
def test_what_its_commits_promised_cannot_be_hit(where: str) -> None:
    engine = lockstep()
    engine.add(request("a", TEXT[:100], max_tokens=100))
    engine.step_alone()
    plan = fail(engine, engine.schedule(), where)
    assert plan.commits[0].num_tokens == 96
    engine.finish()
    engine.add(request("b", TEXT[:100]))
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "error", "b": "length"}
    assert engine.ends["b"].cached_tokens == 0


@where
def test_what_was_committed_before_is_still_found(where: str) -> None:
    engine = lockstep()
    engine.add(request("old", TEXT))
    engine.finish()
    engine.add(request("a", TEXT))
    fail(engine, engine.schedule(), where)
    engine.finish()
    engine.add(request("b", TEXT))
    engine.finish()
    engine.check_over()
    assert engine.ends["b"].cached_tokens == 299


@where
def test_a_plan_behind_it_is_skipped_and_its_newcomers_lose_nothing(where: str) -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(40, 1), max_tokens=30))
    for _ in range(4):
        engine.step_alone()
    fail(engine, engine.schedule(), where)
    engine.add(request("newcomer", prompt_of(40, 2)))
    behind = engine.schedule()
    assert behind is not None
    assert [j.request_id for j in behind.joins] == ["newcomer"]
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "error", "newcomer": "length"}
    assert engine.scheduler.stats().failed_steps == 1


def behind_a_failure(engine: Lockstep) -> StepPlan:
    """`a` fails at the end of a step; the plan behind has a commit, so the thread finishes first."""
    engine.add(request("a", prompt_of(40, 1), max_tokens=200))
    while True:
        plan = engine.schedule()
        behind = engine.schedule()
        assert plan is not None
        assert behind is not None
        if behind.commits:
            fail(engine, plan, "finish")
            return behind
        while engine.execute():
            pass
        engine.drain()
        while engine.update():
            pass


def test_a_plan_with_commits_behind_it_is_skipped_too() -> None:
    """The barrier of a commit finishes the step before it: that failure must reach the plan at hand."""
    engine = lockstep()
    behind = behind_a_failure(engine)
    engine.finish()
    engine.check_over()
    assert engine.scheduler.stats().failed_steps == 1
    assert behind.step_id not in {p.step_id for p in engine.runner.plans}


def test_a_plan_submitted_after_a_drain_that_failed_is_skipped_too() -> None:
    """The engine asked for a drain, then a request came, and only then did it hear of the failure."""
    engine = lockstep()
    engine.add(request("a", prompt_of(40, 1), max_tokens=1))
    fail(engine, engine.schedule(), "finish")
    engine.execute()
    engine.drain()
    engine.add(request("b", prompt_of(40, 2)))
    behind = engine.schedule()
    assert behind is not None
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "error", "b": "length"}
    assert behind.step_id not in {p.step_id for p in engine.runner.plans}


def test_a_launch_that_fails_behind_a_failed_step_is_skipped_not_failed() -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(40, 1), max_tokens=20))
    fail(engine, engine.schedule(), "finish")
    engine.add(request("b", prompt_of(40, 2)))
    fail(engine, engine.schedule(), "launch")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "error", "b": "length"}


@where
def test_a_request_cancelled_before_its_step_failed_stays_cancelled(where: str) -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(40, 1), max_tokens=30))
    engine.step_alone()
    fail(engine, engine.schedule(), where)
    engine.cancel("a")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "abort"}


@where
def test_nothing_is_planned_until_every_plan_is_back(where: str) -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(40, 1), max_tokens=30))
    engine.add(request("b", prompt_of(40, 2), max_tokens=1))
    fail(engine, engine.schedule(), where)
    assert engine.schedule() is not None
    while engine.execute():
        pass
    engine.drain()
    assert len(engine.results) == 2
    engine.update()
    assert engine.schedule() is None
    engine.add(request("c", prompt_of(40, 3)))
    assert engine.schedule() is None
    engine.update()
    assert engine.schedule() is not None
    engine.finish()
    engine.check_over()


@where
def test_every_step_may_fail(where: str) -> None:
    """Twenty requests, one step in three fails: all end, with the right text or an error."""
    engine = lockstep(16, max_num_seqs=3)
    for i in range(20):
        engine.add(request(f"r{i}", (*TEXT[:70], *prompt_of(9, seed=i)), max_tokens=10))
    for i in range(2000):
        if len(engine.in_flight) < 2 and (plan := engine.schedule()) and i % 3 == 0:
            fail(engine, plan, where)
        engine.execute()
        if i % 2:
            engine.drain()
        engine.update()
        if len(engine.ends) == 20:
            break
    engine.finish()
    engine.check_over()
    assert FinishReason.ERROR in {e.finish_reason for e in engine.ends.values()}
