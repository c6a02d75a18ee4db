"""How many requests may wait for their first admission: of each priority, and of each tenant."""

from __future__ import annotations

from collections import Counter

from mlx_server.core.errors import QueueFullError
from mlx_server.core.messages import Priority


class QueueLimits:
    """Counts those that have never had a row. A preempted request was let in once, and counts no more."""

    def __init__(self, per_priority: int, per_tenant: int) -> None:
        self._per_priority = per_priority
        self._per_tenant = per_tenant
        self._of_priority: Counter[Priority] = Counter()
        self._of_tenant: Counter[str] = Counter()

    @property
    def tenants_wait(self) -> bool:
        """Whether a request that has a tenant waits."""
        return any(self._of_tenant)

    def check(self, priority: Priority, tenant: str, retry_after_s: int) -> None:
        """Raises `QueueFullError` when one more would be too many."""
        if self._of_priority[priority] >= self._per_priority:
            whose = f"the queue of priority {priority.name.lower()!r}"
            raise QueueFullError(self._per_priority, retry_after_s, whose)
        if tenant and self._of_tenant[tenant] >= self._per_tenant:
            raise QueueFullError(self._per_tenant, retry_after_s, "the queue of this API key")

    def enter(self, priority: Priority, tenant: str) -> None:
        """A request begins to wait."""
        self._of_priority[priority] += 1
        self._of_tenant[tenant] += 1

    def leave(self, priority: Priority, tenant: str) -> None:
        """It has its first row, or has ended without one."""
        self._of_priority[priority] -= 1
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
