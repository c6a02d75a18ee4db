"""How many blocks the pool has: it grows with the work, up to a budget, and gives memory back when it is short.

The pool starts small. It grows before cached blocks would have to be evicted, and shrinks when the machine is short of
memory: at `WARN` to what is used, at `CRITICAL` to half of that, by preempting the least important. While memory is
short it does not grow, so rows that need more wait; nobody is failed for it.
"""

from __future__ import annotations

from mlx_server.core.messages import MemoryLevel
from mlx_server.services.batching.block_manager import PagedBlockManager

GROWTH = 2
"""A pool that grows becomes so many times as large, or as large as is asked for."""

_MAX_REFUSALS = 3
"""Times in a row that memory is asked for on behalf of a request that cannot run without it."""

_HEADROOM = 16  # one free block in so many is kept, so that growth comes before eviction
_WARN_SPARE = 8  # one block in so many is left over what is used


class PoolSize:
    """Decides; the scheduler acts. Counts are blocks.

    least: it never has fewer, unless `most` is lower. most: the budget.
    """

    def __init__(self, least: int, most: int) -> None:
        self.least = min(least, most)
        self.most = most
        self.level = MemoryLevel.NORMAL
        self._limit = most  # what the level allows
        self._asked = 0  # that somebody who waits needs on top of what is available
        self._is_due = False  # the level has risen: give back what there is to give
        self._refused_at: int | None = None  # a size that could not be had
        self._refusals = 0  # in a row

    def set_level(self, level: MemoryLevel, num_used: int) -> None:
        """num_used: blocks that rows hold now."""
        if level > self.level:
            self._is_due = True
            self._limit = num_used + num_used // _WARN_SPARE if level is MemoryLevel.WARN else num_used // 2
            self._limit = min(max(self._limit, self.least), self.most)
        elif level is MemoryLevel.NORMAL:
            self._is_due = self._is_due or level < self.level  # to say that memory is no longer short
            self._limit = self.most
            self._refused_at = None
        self.level = level

    def ask(self, blocks: int) -> None:
        """Somebody who could be admitted lacks so many blocks."""
        self._asked = max(self._asked, blocks)

    @property
    def is_short(self) -> bool:
        """Whether memory is short."""
        return self.level is not MemoryLevel.NORMAL

    @property
    def admits(self) -> bool:
        """Whether anybody may be admitted."""
        return self.level is not MemoryLevel.CRITICAL

    def target(self, blocks: PagedBlockManager, num_running: int) -> int | None:
        """The size that the pool should have now; None: as it is. num_running: each may need a block."""
        size = blocks.num_blocks
        if self._is_due or size > self._limit:
            return min(size, self._limit)
        most = self._limit
        if self._refused_at is not None and num_running:
            most = min(most, self._refused_at - 1)
        is_short = self._asked or blocks.num_free < max(num_running, size // _HEADROOM)
        if size >= most or not is_short:
            return None
        return min(most, max(size * GROWTH, size + self._asked))

    def resized(self, size: int) -> None:
        """The pool has this size now."""
        self._is_due = False
        self._asked = 0
        self._refusals = 0

    def failed(self, size: int, is_needed: bool) -> bool:
        """The pool could not be given this size: it stays as it is. is_needed: nobody can run without it.

        Whether to try again; otherwise less is asked for until memory is plentiful again.
        """
        self._is_due = False
        self._asked = 0
        self._refusals += 1
        if is_needed and self._refusals < _MAX_REFUSALS:
            return True
        self._refused_at = size
        return False
