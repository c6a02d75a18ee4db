"""Levels follow the readings and do not flap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlx_server.core.messages import MemoryLevel
from mlx_server.services.memory.levels import CALM_S, MARGIN_PERCENT, LevelTracker
from mlx_server.services.memory.reading import MemoryReading
from tests.fakes.scripted_memory import TOTAL_BYTES, used

NORMAL, WARN, CRITICAL = MemoryLevel
WARN_PERCENT, CRITICAL_PERCENT = 85.0, 95.0

shares = st.floats(0, 100)
os_levels = st.none() | st.sampled_from(MemoryLevel)
readings = st.builds(used, shares, os_level=os_levels, psi_full_avg10=st.none() | st.floats(0, 100))
below_critical = st.floats(0, CRITICAL_PERCENT - 0.1)
gaps_s = st.floats(0.1, 10)


def tracker() -> LevelTracker:
    return LevelTracker(WARN_PERCENT, CRITICAL_PERCENT)


def levels(*trace: MemoryReading | float) -> list[MemoryLevel]:
    """Of one reading a second."""
    levels = tracker()
    return [levels.update(r if isinstance(r, MemoryReading) else used(r), s) for s, r in enumerate(trace)]


def test_levels_follow_a_trace() -> None:
    trace = [50, 84, 86, 90, 96, 97, 93, 93, *[89] * 6, *[82] * 6, *[79] * 6]
    expected = [NORMAL, NORMAL, WARN, WARN, WARN, CRITICAL, CRITICAL, CRITICAL]
    expected += [CRITICAL] * 4 + [WARN] * 2  # five seconds after the 93
    expected += [WARN] * 6  # 82 is not low enough
    expected += [WARN] * 4 + [NORMAL] * 2
    assert levels(*trace) == expected


def test_from_critical_straight_to_normal_when_all_is_well() -> None:
    assert levels(96, 96, *[50] * 5) == [WARN, *[CRITICAL] * 5, NORMAL]


def test_from_critical_to_the_highest_level_of_the_calm() -> None:
    assert levels(96, 96, 50, 50, 84, 50, 50, 50)[-1] is WARN


def test_one_reading_makes_nothing_critical() -> None:
    assert CRITICAL not in levels(50, 99, 50, 99, 50, used(50, psi_full_avg10=80.0), 50)


def test_what_the_system_calls_critical_is_so_at_once() -> None:
    assert levels(50, used(50, os_level=CRITICAL)) == [NORMAL, CRITICAL]


def test_the_system_may_warn_where_the_share_does_not() -> None:
    assert levels(used(50, os_level=WARN), used(50, os_level=NORMAL)) == [WARN, WARN]


def test_time_lost_waiting_is_critical() -> None:
    waiting = used(50, psi_full_avg10=20.0)
    assert levels(waiting, waiting, used(50, psi_full_avg10=16.0)) == [WARN, CRITICAL, CRITICAL]


def test_a_full_control_group_counts_as_a_full_machine() -> None:
    reading = used(10, cgroup_used_bytes=90, cgroup_limit_bytes=100)
    assert (reading.used_percent, levels(reading)) == (90.0, [WARN])
    assert used(25, cgroup_used_bytes=10, cgroup_limit_bytes=100).used_percent == 25.0


@given(st.lists(st.tuples(gaps_s, readings), max_size=60))
def test_every_fall_is_after_a_calm(trace: list[tuple[float, MemoryReading]]) -> None:
    levels, now_s, before = tracker(), 0.0, NORMAL
    disturbed_s = {WARN: 0.0, CRITICAL: 0.0}
    for gap_s, reading in trace:
        now_s += gap_s
        level = levels.update(reading, now_s)
        for one, threshold in ((WARN, WARN_PERCENT), (CRITICAL, CRITICAL_PERCENT)):
            is_os = reading.os_level is not None and reading.os_level >= one
            if is_os or reading.used_percent >= threshold - MARGIN_PERCENT or (reading.psi_full_avg10 or 0) >= 15:
                disturbed_s[one] = now_s
            if level < one <= before:
                assert now_s - disturbed_s[one] >= CALM_S
        before = level


@given(st.sampled_from([WARN_PERCENT, CRITICAL_PERCENT]), st.lists(st.floats(-4.9, 4.9), min_size=2, max_size=80))
def test_wavering_around_a_threshold_changes_the_level_at_most_twice(threshold: float, waves: list[float]) -> None:
    """It rises, and stays. Twice: to critical by way of a warning."""
    seen = levels(*(min(threshold + wave, 100.0) for wave in waves))
    assert seen == sorted(seen)


@given(st.lists(st.tuples(gaps_s, readings), min_size=1, max_size=60))
def test_a_reading_is_never_taken_for_less_than_a_warning(trace: list[tuple[float, MemoryReading]]) -> None:
    levels, now_s = tracker(), 0.0
    for gap_s, reading in trace:
        now_s += gap_s
        level = levels.update(reading, now_s)
        if reading.used_percent >= WARN_PERCENT:
            assert level >= WARN
        if reading.os_level is not None:
            assert level >= reading.os_level


@given(st.lists(st.tuples(gaps_s, below_critical), max_size=60))
def test_nothing_critical_without_a_critical_reading(trace: list[tuple[float, float]]) -> None:
    levels, now_s = tracker(), 0.0
    for gap_s, percent in trace:
        now_s += gap_s
        assert levels.update(used(percent), now_s) is not CRITICAL


@given(st.lists(readings, max_size=30))
def test_calm_ends_every_shortage(trace: list[MemoryReading]) -> None:
    levels = tracker()
    for second, reading in enumerate(trace):
        levels.update(reading, second)
    for second in range(len(trace), len(trace) + int(CALM_S) + 1):
        levels.update(used(50), second)
    assert levels.level is NORMAL


def test_the_fakes_machine_is_as_full_as_it_says() -> None:
    assert used(25).available_bytes == TOTAL_BYTES * 3 // 4
