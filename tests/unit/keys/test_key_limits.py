"""The limits of a key, on a clock of the test's own."""

import pytest

from mlx_server.services.key_limits import KeyLimits, OverLimit
from mlx_server.services.keys import ApiKey


def key(name: str = "a", **limits: int) -> ApiKey:
    return ApiKey(id=name * 8, name=name, sha256="0" * 64, created_s=0, **limits)


def retry_after(refusal: OverLimit | None) -> int:
    assert refusal is not None
    return refusal.retry_after_s


def test_no_limits() -> None:
    limits = KeyLimits()
    assert all(limits.enter(key(), 0.0) is None for _ in range(10_000))


def test_at_the_same_time() -> None:
    limits, two = KeyLimits(), key(max_concurrent=2)
    assert limits.enter(two, 0.0) is None
    assert limits.enter(two, 0.0) is None
    refusal = limits.enter(two, 0.0)
    assert retry_after(refusal) == 1
    assert "2 requests" in str(refusal)
    assert limits.enter(key("b", max_concurrent=2), 0.0) is None
    limits.leave(two)
    assert limits.enter(two, 0.0) is None


def test_leaving_without_having_entered_is_an_error() -> None:
    limits, one = KeyLimits(), key(max_concurrent=1)
    limits.enter(one, 0.0)
    limits.leave(one)
    with pytest.raises(RuntimeError, match="aaaaaaaa"):
        limits.leave(one)


@pytest.mark.parametrize("per_minute", [1, 2, 3, 7, 11, 60, 97, 600, 1_000_000])
@pytest.mark.parametrize("start", [0.0, 12345.678])
def test_a_burst_of_a_minutes_worth_then_exactly_when_retry_after_says(per_minute: int, start: float) -> None:
    limits, one = KeyLimits(), key(per_minute=per_minute)
    burst = min(per_minute, 1000)
    assert all(limits.enter(one, start) is None for _ in range(burst))
    if burst < per_minute:
        return
    wait_s = retry_after(limits.enter(one, start))
    assert wait_s == max(1, -(-60 // per_minute))
    assert wait_s == 1 or limits.enter(one, start + wait_s - 1.001) is not None
    assert limits.enter(one, start + wait_s) is None


def test_a_refused_request_costs_nothing() -> None:
    limits, one = KeyLimits(), key(per_minute=1)
    assert limits.enter(one, 0.0) is None
    assert [retry_after(limits.enter(one, now)) for now in (0.0, 30.0, 59.5)] == [60, 30, 1]
    assert limits.enter(one, 60.0) is None


def test_idle_time_saves_up_one_minute_and_no_more() -> None:
    limits, one = KeyLimits(), key(per_minute=5)
    limits.enter(one, 0.0)
    assert sum(limits.enter(one, 100_000.0) is None for _ in range(20)) == 5
