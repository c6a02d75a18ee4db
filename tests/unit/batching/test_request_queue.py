"""Priorities that age, with one key for life."""

from mlx_server.core.messages import Priority
from mlx_server.services.batching.request_queue import RequestQueue, effective_priority, queue_key


def test_low_becomes_normal_after_10_s_and_high_after_20_s() -> None:
    key = queue_key(100.0, Priority.LOW, seq=1)
    levels = [effective_priority(key, now) for now in (100.0, 109.5, 110.0, 119.5, 120.0, 500.0)]
    low, normal, high = Priority.LOW, Priority.NORMAL, Priority.HIGH
    assert levels == [low, low, normal, normal, high, high]


def test_a_request_that_waited_goes_before_a_newcomer_of_the_level_it_has_reached() -> None:
    waited = queue_key(0.0, Priority.LOW, seq=1)
    assert queue_key(9.0, Priority.NORMAL, seq=2) < waited < queue_key(10.0, Priority.NORMAL, seq=3)
    assert queue_key(19.0, Priority.HIGH, seq=4) < waited < queue_key(20.0, Priority.HIGH, seq=5)


def test_first_come_first_served_within_a_level_at_the_same_instant() -> None:
    queue = RequestQueue()
    for seq in (3, 1, 2):
        queue.push(f"r{seq}", queue_key(5.0, Priority.NORMAL, seq))
    assert [queue.pop(), queue.pop(), queue.pop(), queue.pop()] == ["r1", "r2", "r3", None]


def test_waiting_never_reorders_two_requests() -> None:
    """The reason why a queue needs no rescoring: who goes first does not depend on when one asks."""
    early_low, late_normal = queue_key(0.0, Priority.LOW, 1), queue_key(8.0, Priority.NORMAL, 2)
    assert late_normal < early_low
    for now in (8.0, 11.0, 19.0, 40.0):
        assert effective_priority(late_normal, now) <= effective_priority(early_low, now)


def test_an_id_removed_and_pushed_again_is_there_once() -> None:
    queue = RequestQueue()
    key = queue_key(0.0, Priority.HIGH, 1)
    for _ in range(3):
        queue.push("r1", key)
        assert queue.remove("r1")
    queue.push("r1", key)
    assert not queue.remove("r2")
    assert [queue.pop(), queue.pop()] == ["r1", None]
