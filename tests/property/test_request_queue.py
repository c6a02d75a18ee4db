"""The queue against a list that is sorted anew, by the level a request has reached, whenever it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mlx_server.core.messages import Priority
from mlx_server.services.batching.request_queue import QueueKey, RequestQueue, effective_priority, queue_key

AGING_PER_S = 0.1  # levels: the project's figure


class RequestQueueMachine(RuleBasedStateMachine):
    """Seconds are whole, so that sums of them are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = RequestQueue()
        self.waiting: dict[str, tuple[int, Priority, QueueKey]] = {}
        self.taken: dict[str, tuple[int, Priority, QueueKey]] = {}
        self.now = 0
        self.seq = 0

    def aged(self, request_id: str) -> tuple[float, int]:
        """Rescored now, the way a queue without a fixed key would do it."""
        arrival, priority, key = self.waiting[request_id]
        return round(priority - AGING_PER_S * (self.now - arrival), 6), key.seq

    def expected_head(self) -> str | None:
        return min(self.waiting, key=self.aged, default=None)

    @rule(seconds=st.integers(0, 15))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(priority=st.sampled_from(Priority))
    def push(self, priority: Priority) -> None:
        self.seq += 1
        key = queue_key(float(self.now), priority, self.seq)
        self.queue.push(f"r{self.seq}", key)
        self.waiting[f"r{self.seq}"] = (self.now, priority, key)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 1000))
    def push_twice(self, which: int) -> None:
        request_id = list(self.waiting)[which % len(self.waiting)]
        with pytest.raises(ValueError, match=request_id):
            self.queue.push(request_id, self.waiting[request_id][2])

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 1000))
    def push_again_with_the_old_key(self, which: int) -> None:
        request_id = list(self.taken)[which % len(self.taken)]
        self.waiting[request_id] = self.taken.pop(request_id)
        self.queue.push(request_id, self.waiting[request_id][2])

    @rule()
    def pop(self) -> None:
        head = self.expected_head()
        assert self.queue.pop() == head
        if head is not None:
            self.taken[head] = self.waiting.pop(head)

    @precondition(lambda self: self.seq)
    @rule(which=st.integers(0, 1000))
    def remove(self, which: int) -> None:
        request_id = f"r{1 + which % self.seq}"
        assert self.queue.remove(request_id) == (request_id in self.waiting)
        if request_id in self.waiting:
            self.taken[request_id] = self.waiting.pop(request_id)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.queue.peek() == self.expected_head()
        assert len(self.queue) == len(self.waiting)
        assert list(self.queue) == sorted(self.waiting, key=self.aged)
        assert all(request_id in self.queue for request_id in self.waiting)


TestRequestQueue = RequestQueueMachine.TestCase
TestRequestQueue.settings = settings(deadline=None, derandomize=True, max_examples=60, stateful_step_count=50)


@given(st.integers(0, 100), st.sampled_from(Priority), st.integers(0, 60))
@settings(deadline=None, derandomize=True)
def test_effective_priority_is_that_of_a_newcomer_with_the_same_rank(
    arrival: int, priority: Priority, waited: int
) -> None:
    now = float(arrival + waited)
    key = queue_key(float(arrival), priority, 1)
    level = effective_priority(key, now)
    assert level == max(priority - waited // 10, Priority.HIGH)
    assert key < queue_key(now, level, 2), "a newcomer of that level comes after it"
