"""What the scheduler counts for those who watch."""

from __future__ import annotations

from mlx_server.core.messages import Priority
from tests.fakes.lockstep import lockstep, prompt_of, request


def test_requests_are_counted_by_priority() -> None:
    engine = lockstep(max_num_seqs=2)
    levels = [Priority.HIGH, Priority.LOW, Priority.LOW, Priority.NORMAL]
    for index, priority in enumerate(levels):
        engine.add(request(f"r{index}", prompt_of(40, index), max_tokens=4, priority=priority))
    stats = engine.scheduler.stats()
    assert (stats.running_by_priority, stats.waiting_by_priority) == ((0, 0, 0), (1, 1, 2))
    engine.step_alone()
    stats = engine.scheduler.stats()
    assert (stats.running_by_priority, stats.waiting_by_priority) == ((1, 1, 0), (0, 0, 2))
    assert (stats.running, stats.waiting) == (2, 2)
    while engine.step_alone() is not None:
        pass
    stats = engine.scheduler.stats()
    assert (stats.running_by_priority, stats.waiting_by_priority) == ((0, 0, 0), (0, 0, 0))


def test_commits_are_counted_when_they_have_been_done() -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(100), max_tokens=40))
    planned = 0
    while (plan := engine.step_alone()) is not None:
        planned += len(plan.commits)
        assert engine.scheduler.stats().commits == planned
    assert planned > 1
