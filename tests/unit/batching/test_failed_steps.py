"""A failed step fails nobody but the request that makes it fail. No block holds what was never written."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from mlx_server.core.messages import FinishReason
from mlx_server.core.step import StepPlan
from mlx_server.services.batching.request import RequestState
from tests.fakes.lockstep import Lockstep, lockstep, prompt_of, request

TEXT = prompt_of(300)
MOST_FAILURES = 5
"""Failed steps for one poisoned request, whoever else there is (`core/blame.py`)."""

where = pytest.mark.parametrize("where", ["launch", "finish"])


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="mlx_server.engine.generation_thread")


def fail(engine: Lockstep, plan: StepPlan | None, where: str) -> StepPlan:
    """This plan fails, and only this once."""
    assert plan is not None
    runner = engine.runner
    (runner.fail_launch if where == "launch" else runner.fail_finish).add(plan.step_id)
    return plan


def poison(engine: Lockstep, where: str, **positions: int) -> None:
    """Every step fails in which a request gets as far as its position."""
    runner = engine.runner
    (runner.poison_launch if where == "launch" else runner.poison).update(positions)


def add(engine: Lockstep, names: str, max_tokens: int = 30, prompt_len: int = 40) -> None:
    """Requests named by one letter each."""
    for name in names:
        engine.add(request(name, prompt_of(prompt_len, ord(name)), max_tokens=max_tokens))


def decoding(engine: Lockstep, names: str, max_tokens: int = 30) -> None:
    """The same, five tokens on and beyond doubt."""
    add(engine, names, max_tokens)
    for _ in range(5):
        engine.step_alone()
    assert all(len(engine.texts[name]) == 5 for name in names)


def finish_each_apart(engine: Lockstep, *failures: str) -> None:
    """One transient failure after the other, each of the first plan there is; then to the end."""
    for where in failures:
        fail(engine, engine.schedule(), where)
        engine.step_alone()
    engine.finish()
    engine.check_over()


def reasons(engine: Lockstep) -> dict[str, str]:
    return {request_id: str(end.finish_reason) for request_id, end in engine.ends.items()}


def failed_steps(engine: Lockstep) -> int:
    return engine.scheduler.stats().failed_steps


def rows(engine: Lockstep) -> str:
    """Who is running."""
    return "".join(r.request_id for r in engine.scheduler._sets.running)


def is_trying(engine: Lockstep) -> bool:
    """Whether a suspect is on trial: nobody may start."""
    candidates = engine.scheduler._sets.blame.candidates
    return candidates is not None and not candidates


# ---- failures that do not come back ----------------------------------------------------------------


@where
@pytest.mark.parametrize("at", [0, 1, 5, 20, 29])
def test_one_failure_fails_nobody(where: str, at: int) -> None:
    engine = lockstep(max_num_seqs=2)
    add(engine, "abc")
    for _ in range(at):
        engine.step_alone()
    finish_each_apart(engine, where)
    assert reasons(engine) == dict.fromkeys("abc", "length")
    assert failed_steps(engine) == 1


@where
def test_failures_in_a_row_that_hit_several_fail_nobody(where: str) -> None:
    """Those on trial are alone, and pass."""
    engine = lockstep()
    decoding(engine, "abcd")
    finish_each_apart(engine, where, where)
    assert reasons(engine) == dict.fromkeys("abcd", "length")
    assert failed_steps(engine) == 2


@where
def test_a_sole_request_may_fail_often_when_it_gets_on_in_between(where: str) -> None:
    engine = lockstep()
    add(engine, "a", max_tokens=60)
    for _ in range(8):
        fail(engine, engine.schedule(), where)
        engine.step_alone()
        before = len(engine.texts["a"])
        while len(engine.texts["a"]) < before + 2:
            engine.step_alone()
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "length"}
    assert failed_steps(engine) == 8


@where
def test_a_sole_request_that_fails_twice_without_getting_on_ends(where: str) -> None:
    engine = lockstep()
    decoding(engine, "a")
    finish_each_apart(engine, where, where)
    assert reasons(engine) == {"a": "error"}
    assert len(engine.texts["a"]) == 5
    assert (engine.ends["a"].error or "").startswith(f"DeviceError: {where} of step ")


@where
def test_its_commits_are_taken_back_and_what_was_written_before_stays(where: str) -> None:
    engine = lockstep()
    engine.add(request("old", TEXT[:32]))
    engine.finish()
    engine.add(request("a", TEXT[:100], max_tokens=100))
    engine.step_alone()
    plan = fail(engine, engine.schedule(), where)
    assert plan.commits[0].num_tokens == 64
    engine.step_alone()
    again = engine.schedule()
    assert again is not None
    assert [len(join.block_ids) for join in again.joins] == [1]
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"old": "length", "a": "length"}


# ---- requests that always fail ---------------------------------------------------------------------


@where
@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize(
    ("poisoned", "at_most"),
    [
        ({"x": 1}, 4),  # one of two newcomers
        ({"y": 40}, 4),
        ({"x": 40, "y": 1}, 7),
        ({"a": 60}, MOST_FAILURES),  # an old one, beyond doubt like the others
        ({"a": 64, "d": 66}, 2 * MOST_FAILURES),
        ({"b": 60, "x": 1, "y": 55}, 3 * MOST_FAILURES),
        ({"a": 60, "b": 60, "c": 60, "d": 60}, 4 * MOST_FAILURES),
    ],
    ids=str,
)
def test_whoever_always_fails_ends_and_all_others_get_their_texts(
    where: str, overlaps: bool, poisoned: Mapping[str, int], at_most: int
) -> None:
    engine = lockstep(overlaps=overlaps)
    poison(engine, where, **poisoned)
    decoding(engine, "abcd", max_tokens=40)
    add(engine, "xy")
    engine.finish()
    engine.check_over()
    ends = reasons(engine)
    assert {name for name, reason in ends.items() if reason == "error"} == set(poisoned)
    assert set(ends.values()) == {"error", "length"}
    assert failed_steps(engine) <= at_most
    for name, position in poisoned.items():
        assert len(engine.texts[name]) == max(0, position - 40), "what it had before is delivered"


@where
@pytest.mark.parametrize("others", [0, 1, 3, 12])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_number_of_failed_steps_does_not_depend_on_how_many_run(
    where: str, others: int, prefix_cache: bool
) -> None:
    """Newcomers come all the time, so that somebody else is in doubt in every failure."""
    engine = lockstep(max_num_seqs=14, prefix_cache=prefix_cache)
    names = [f"r{i}" for i in range(others)]
    for i, name in enumerate([*names, "x"]):
        engine.add(request(name, prompt_of(70, i), max_tokens=30))
    poison(engine, where, x=85)
    for i in range(200):
        if "x" not in engine.ends and i < 100:
            engine.add(request(f"late{i}", prompt_of(20, 100 + i), max_tokens=3))
        engine.step()
    engine.finish()
    engine.check_over()
    assert [name for name, reason in reasons(engine).items() if reason == "error"] == ["x"]
    assert failed_steps(engine) <= MOST_FAILURES


@where
def test_a_newcomer_beside_others_is_found_at_its_third_failure(where: str) -> None:
    engine = lockstep()
    poison(engine, where, x=40)
    decoding(engine, "abcd")
    add(engine, "x")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == dict.fromkeys("abcd", "length") | {"x": "error"}
    assert failed_steps(engine) == 3


@pytest.mark.parametrize("overlaps", [True, False])
def test_who_is_named_by_the_runner_ends_at_once(overlaps: bool) -> None:
    engine = lockstep(overlaps=overlaps)
    decoding(engine, "abc")
    engine.runner.bad_rows.add("b")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "length", "b": "error", "c": "length"}
    assert engine.ends["b"].error == "RowError: a bad row"
    assert failed_steps(engine) == 1
    assert not engine.scheduler._sets.blame.in_doubt


def test_each_named_by_the_runner_ends_in_its_turn() -> None:
    engine = lockstep()
    engine.runner.bad_rows.update("bdx")
    add(engine, "abcdx")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "length", "c": "length"} | dict.fromkeys("bdx", "error")
    assert failed_steps(engine) == 3


# ---- requests that end while their step is in flight -----------------------------------------------


@where
def test_a_request_cancelled_before_its_step_failed_stays_cancelled(where: str) -> None:
    engine = lockstep()
    decoding(engine, "ab")
    fail(engine, engine.schedule(), where)
    engine.cancel("a")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "abort", "b": "length"}


@pytest.mark.parametrize("where", ["launch", "finish", "named"])
def test_a_poisoned_one_cancelled_in_time_is_nobody_to_blame(where: str) -> None:
    engine = lockstep()
    decoding(engine, "ab")
    if where == "named":
        engine.runner.bad_rows.add("a")
    else:
        poison(engine, where, a=45)
    engine.schedule()
    engine.cancel("a")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "abort", "b": "length"}
    assert failed_steps(engine) == 1


@where
def test_a_step_whose_only_request_has_left_already_may_fail(where: str) -> None:
    """A part of its prompt is in flight, so nobody waits for a token of it, and it is forgotten at the boundary."""
    engine = lockstep(max_num_batched_tokens=64)
    engine.add(request("a", TEXT))
    fail(engine, engine.schedule(), where)
    engine.cancel("a")
    assert engine.schedule() is not None
    assert engine.scheduler._sets.get("a") is None
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "abort"}


# ---- plans behind a failed step --------------------------------------------------------------------


@where
def test_a_plan_behind_it_is_skipped_and_its_newcomers_lose_nothing(where: str) -> None:
    engine = lockstep()
    decoding(engine, "a")
    fail(engine, engine.schedule(), where)
    add(engine, "n")
    behind = engine.schedule()
    assert behind is not None
    assert [j.request_id for j in behind.joins] == ["n"]
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "length", "n": "length"}
    assert failed_steps(engine) == 1


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
    assert failed_steps(engine) == 1
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
    assert reasons(engine) == {"a": "length", "b": "length"}
    assert behind.step_id not in {p.step_id for p in engine.runner.plans}


def test_a_launch_that_fails_behind_a_failed_step_is_skipped_not_failed() -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(40, 1), max_tokens=20))
    fail(engine, engine.schedule(), "finish")
    engine.add(request("b", prompt_of(40, 2)))
    fail(engine, engine.schedule(), "launch")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "length", "b": "length"}
    assert failed_steps(engine) == 1


@where
def test_nothing_is_planned_until_every_plan_is_back(where: str) -> None:
    engine = lockstep()
    add(engine, "a")
    add(engine, "b", max_tokens=1)
    fail(engine, engine.schedule(), where)
    assert engine.schedule() is not None
    while engine.execute():
        pass
    engine.drain()
    assert len(engine.results) == 2
    engine.update()
    assert engine.schedule() is None
    add(engine, "c")
    assert engine.schedule() is None
    engine.update()
    assert engine.schedule() is not None
    engine.finish()
    engine.check_over()
    assert reasons(engine) == dict.fromkeys("abc", "length")


# ---- suspects --------------------------------------------------------------------------------------


def suspects(engine: Lockstep, names: str, max_tokens: int = 30) -> None:
    """Newcomers whose first step fails: each must show that it was not the one."""
    add(engine, names, max_tokens)
    fail(engine, engine.schedule(), "finish")
    engine.step_alone()
    assert rows(engine) == ""


def test_suspects_start_one_at_a_time_and_everybody_else_after_them() -> None:
    engine = lockstep()
    decoding(engine, "ab")
    suspects(engine, "xyz")
    add(engine, "n")
    order = []
    while len(order) < 6:
        plan = engine.step_alone()
        assert plan is not None
        order += [join.request_id for join in plan.joins]
        assert len(plan.joins) <= 1 or len(order) > 3
    assert order[:3] == ["x", "y", "z"]
    assert set(order[3:]) == {"a", "b", "n"}
    engine.finish()
    engine.check_over()
    assert set(reasons(engine).values()) == {"length"}


@where
def test_a_failure_beside_a_suspect_does_not_make_it_guilty(where: str) -> None:
    """`a` has passed its trial and fails for the first time when `b` is on trial beside it."""
    engine = lockstep()
    suspects(engine, "ab")
    engine.step_alone()
    poison(engine, where, a=41)
    engine.schedule()
    assert is_trying(engine)
    assert rows(engine) == "ab"
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "error", "b": "length"}


@where
def test_a_transient_failure_of_a_trial_fails_nobody(where: str) -> None:
    engine = lockstep()
    suspects(engine, "xy")
    fail(engine, engine.schedule(), where)
    assert is_trying(engine)
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"x": "length", "y": "length"}
    assert failed_steps(engine) == 2


@pytest.mark.parametrize("which", ["x", "y", "n"])
def test_a_trial_goes_on_without_those_that_are_cancelled(which: str) -> None:
    """The one on trial, the next suspect, or a newcomer."""
    engine = lockstep()
    suspects(engine, "xy")
    add(engine, "n")
    engine.schedule()
    assert is_trying(engine)
    engine.cancel(which)
    engine.finish()
    engine.check_over()
    assert reasons(engine) == dict.fromkeys("xyn", "length") | {which: "abort"}


def test_a_suspect_without_room_waits_until_there_is_room() -> None:
    """What has failed asks for more room when it starts again, and whoever has passed its trial holds it."""
    engine = lockstep(6)
    suspects(engine, "xy", max_tokens=100)
    while "x" not in engine.ends:
        engine.step()
        assert rows(engine) in ("x", "")
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"x": "length", "y": "length"}


def test_a_suspect_that_is_preempted_is_tried_again() -> None:
    """Without a cache the trial of a long prompt takes so many steps that the row beside it needs its blocks."""
    engine = lockstep(135, max_num_seqs=2, max_num_batched_tokens=96, max_model_len=4300, prefix_cache=False)
    engine.add(request("a", prompt_of(20, 1), max_tokens=200))
    engine.add(request("long", prompt_of(4200, 2), max_tokens=10))
    long = engine.scheduler._sets["long"]
    while len(engine.texts["a"]) < 41:
        engine.step_alone()
    for _ in range(2):
        plan = fail(engine, engine.schedule(), "finish")
        assert {segment.request_id for segment in plan.segments} == {"a", "long"}
        engine.step_alone()
    assert engine.scheduler.counters.preemptions == 0
    add(engine, "n")
    while not long.is_running:
        engine.step_alone()
    while is_trying(engine):
        engine.step_alone()
    assert long.state is RequestState.WAITING
    assert engine.scheduler.counters.preemptions == 1
    assert not engine.scheduler._sets["n"].admissions
    engine.finish()
    engine.check_over()
    assert reasons(engine) == {"a": "length", "long": "length", "n": "length"}


# ---- all at once -----------------------------------------------------------------------------------


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
    assert {e.finish_reason for e in engine.ends.values()} <= {FinishReason.ERROR, FinishReason.LENGTH}
    assert FinishReason.LENGTH in {e.finish_reason for e in engine.ends.values()}
