"""The waiting queue: one fixed key for life gives priorities that age.

A request of level l (0 high, 1 normal, 2 low) that arrived at t has the key t + l * PATIENCE_S. Linear
aging never reorders two waiting requests, so nothing is ever rescored: a low request that has waited
10 s ranks with a normal one that arrives now, after 20 s with a high one, and nothing starves.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from mlx_server.core.messages import Priority

PATIENCE_S = 10.0
"""Seconds of waiting that lift a request by one level."""


class QueueKey(NamedTuple):
    """Smaller is more important. `seq` makes the order total and first-come-first-served."""

    rank_s: float
    seq: int


def queue_key(arrival_s: float, priority: Priority, seq: int) -> QueueKey:
    """The key of a request, fixed for its life (also through preemption)."""
    return QueueKey(arrival_s + priority * PATIENCE_S, seq)


def effective_priority(key: QueueKey, now: float) -> Priority:
    """The level that a newcomer at `now` would need to rank with this key."""
    level = -(-(key.rank_s - now) // PATIENCE_S)
    return Priority(int(min(max(level, Priority.HIGH), Priority.LOW)))


class RequestQueue:
    """Waiting request ids in key order. Push and pop O(log n), remove O(1) (deleted lazily)."""

    def __init__(self) -> None:
        self._heap: list[tuple[QueueKey, str]] = []
        self._keys: dict[str, QueueKey] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._keys

    def __iter__(self) -> Iterator[str]:
        """Ids in key order."""
        return iter(sorted(self._keys, key=self._keys.__getitem__))

    def push(self, request_id: str, key: QueueKey) -> None:
        """Raises ValueError when the id waits already."""
        if request_id in self._keys:
            raise ValueError(f"{request_id} is in the queue already")
        self._keys[request_id] = key
        heapq.heappush(self._heap, (key, request_id))

    def peek(self) -> str | None:
        """The most important id, or None."""
        heap = self._heap
        while heap and self._keys.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def pop(self) -> str | None:
        """Take the most important id, or None."""
        request_id = self.peek()
        if request_id is not None:
            heapq.heappop(self._heap)
            del self._keys[request_id]
        return request_id

    def remove(self, request_id: str) -> bool:
        """Take one id out of the middle; False when it does not wait."""
        return self._keys.pop(request_id, None) is not None
