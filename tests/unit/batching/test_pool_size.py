"""The pool grows with the work and gives memory back under pressure; no text changes, and nobody is failed."""

from __future__ import annotations

import pytest

from mlx_server.core.errors import MemoryPressureError
from mlx_server.core.messages import FinishReason, MemoryLevel
from tests.fakes.lockstep import Lockstep, elastic, prompt_of, request

NORMAL, WARN, CRITICAL = MemoryLevel


def size(engine: Lockstep) -> int:
    return engine.scheduler.stats().pool_blocks


def run(engine: Lockstep, steps: int) -> None:
    for _ in range(steps):
        engine.step_alone()
        engine.scheduler.check_invariants()
        assert len(engine.runner.pool) == size(engine)


def filled(initial: int = 8, most: int = 128, rows: int = 6) -> Lockstep:
    """Rows that decode, in a pool that has grown for them."""
    engine = elastic(initial, most, max_model_len=min(most * 32, 1024))
    for i in range(rows):
        engine.add(request(f"r{i}", prompt_of(100, i), max_tokens=150))
    run(engine, 20)
    return engine


def test_it_starts_small_and_grows_before_anybody_is_preempted_or_evicted() -> None:
    engine = filled()
    engine.finish()
    engine.check_over()
    stats = engine.scheduler.stats()
    assert 8 < stats.pool_blocks <= 128
    assert (stats.preemptions, stats.evictions) == (0, 0)


def test_one_long_prompt_gets_what_it_needs_at_once() -> None:
    engine = elastic(8, 128, max_model_len=1024)
    engine.add(request("long", prompt_of(1000), max_tokens=20))
    engine.finish()
    engine.check_over()
    assert engine.runner.resizes <= 2


def test_it_does_not_grow_beyond_its_budget() -> None:
    engine = filled(8, 24, rows=10)
    engine.finish(20_000)
    engine.check_over()
    assert size(engine) <= 24
    assert engine.scheduler.stats().preemptions > 0


def test_warn_gives_back_what_nobody_uses() -> None:
    engine = filled()
    for i in range(6):
        engine.cancel(f"r{i}")
    engine.add(request("last", prompt_of(40, 9), max_tokens=200))
    run(engine, 4)
    before = engine.scheduler.stats()
    assert before.blocks_cached > 0
    engine.scheduler.set_memory_level(WARN)
    run(engine, 4)
    after = engine.scheduler.stats()
    assert after.pool_blocks < before.pool_blocks
    assert after.pool_blocks >= 8
    assert after.preemptions == before.preemptions, "who runs goes on"
    engine.finish()
    engine.check_over()


def test_critical_preempts_the_least_important_and_admits_nobody_until_it_is_over() -> None:
    engine = filled()
    before = size(engine)
    engine.scheduler.set_memory_level(CRITICAL)
    run(engine, 6)
    stats = engine.scheduler.stats()
    assert stats.pool_blocks <= before // 2 + 1
    assert stats.preemptions > 0
    assert stats.running >= 1, "the most important goes on"
    with pytest.raises(MemoryPressureError):
        engine.add(request("late", prompt_of(20)))
    waiting = stats.waiting
    run(engine, 10)
    assert engine.scheduler.stats().waiting >= waiting
    engine.scheduler.set_memory_level(NORMAL)
    engine.finish(20_000)
    engine.check_over()
    assert {end.finish_reason for end in engine.ends.values()} == {FinishReason.LENGTH}


def test_up_and_down_again_and_again() -> None:
    engine = filled()
    for level in (WARN, CRITICAL, WARN, NORMAL, CRITICAL, NORMAL, WARN, NORMAL):
        engine.scheduler.set_memory_level(level)
        run(engine, 5)
    engine.finish(20_000)
    engine.check_over()


def test_what_is_cached_survives_the_move() -> None:
    engine = elastic(8, 128, max_model_len=1024)
    for i in range(8):
        engine.add(request(f"r{i}", prompt_of(100, i), max_tokens=5))
    engine.finish()
    engine.add(request("again", prompt_of(100, 7), max_tokens=200))
    run(engine, 3)
    engine.scheduler.set_memory_level(WARN)
    run(engine, 3)
    engine.scheduler.set_memory_level(NORMAL)
    engine.add(request("twice", prompt_of(100, 7), max_tokens=5))
    engine.finish()
    engine.check_over()
    assert engine.ends["twice"].cached_tokens == 99


def test_growth_that_is_refused_once_fails_nobody() -> None:
    engine = elastic(8, 128, max_model_len=256)
    for i in range(3):
        engine.add(request(f"r{i}", prompt_of(100, i), max_tokens=100))
    plan = engine.schedule()
    while plan is None or plan.resize is None:
        engine.step_alone() if plan is None else None
        while engine.execute():
            pass
        engine.drain()
        while engine.update():
            pass
        plan = engine.schedule()
    engine.runner.fail_launch.add(plan.step_id)
    engine.finish(20_000)
    engine.check_over()
    assert engine.scheduler.stats().failed_steps == 1
    assert {end.finish_reason for end in engine.ends.values()} == {FinishReason.LENGTH}


def test_a_request_for_which_memory_is_refused_again_and_again_ends_alone() -> None:
    engine = elastic(8, 128, max_model_len=1024)
    engine.runner.refuse_growth = True
    engine.add(request("big", prompt_of(900, 1), max_tokens=20))
    engine.add(request("small", prompt_of(50, 2), max_tokens=20))
    engine.add(request("big too", prompt_of(900, 3), max_tokens=20))
    engine.finish(20_000)
    engine.check_over()
    assert {name: str(end.finish_reason) for name, end in engine.ends.items()} == {
        "big": "error",
        "small": "length",
        "big too": "error",
    }
    engine.runner.refuse_growth = False
    engine.add(request("later", prompt_of(900, 4), max_tokens=20))
    engine.finish()
    assert engine.ends["later"].finish_reason is FinishReason.LENGTH
