"""From readings to a `MemoryLevel` that does not flap."""

from __future__ import annotations

from mlx_server.core.messages import MemoryLevel
from mlx_server.services.memory.reading import MemoryReading

MARGIN_PERCENT = 5.0
"""A level is left so far below where it begins."""

CALM_S = 5.0
"""A level is left so long after the last reading that was not below its end (chosen by guess)."""

PSI_FULL_PERCENT = 20.0
"""Critical begins where all tasks wait for memory in so much of the time (chosen by guess)."""


class LevelTracker:
    """Rises at once, falls when it has been calm. Decides on what it is given: no clock, no system calls.

    The share used alone, or time lost waiting, is critical from its second reading in a row on; until then it is a
    warning. What the system itself calls critical is so at once (`test_levels.py`).

    warn_percent, critical_percent: of memory used, from which a level begins.
    """

    def __init__(self, warn_percent: float, critical_percent: float) -> None:
        self._warn_percent = warn_percent
        self._critical_percent = critical_percent
        self._level = MemoryLevel.NORMAL
        self._was_critical = False  # the reading before
        self._kept_s = {MemoryLevel.WARN: 0.0, MemoryLevel.CRITICAL: 0.0}  # when a reading last did not end the level

    @property
    def level(self) -> MemoryLevel:
        return self._level

    def update(self, reading: MemoryReading, now_s: float) -> MemoryLevel:
        """The level after this reading. now_s: seconds of any clock that does not go back."""
        kept = self._level_of(reading, MARGIN_PERCENT)
        self._kept_s |= {level: now_s for level in self._kept_s if level <= kept}
        self._level = max(self._level, self._confirmed(reading))
        while self._level > MemoryLevel.NORMAL and now_s - self._kept_s[self._level] >= CALM_S:
            self._level = MemoryLevel(self._level - 1)
        return self._level

    def _confirmed(self, reading: MemoryReading) -> MemoryLevel:
        level = self._level_of(reading, 0.0)
        is_critical = level is MemoryLevel.CRITICAL
        is_certain = self._was_critical or reading.os_level is MemoryLevel.CRITICAL
        self._was_critical = is_critical
        return MemoryLevel.WARN if is_critical and not is_certain else level

    def _level_of(self, reading: MemoryReading, margin: float) -> MemoryLevel:
        """What the reading amounts to by thresholds that are lower by `margin` points."""
        by_os = reading.os_level or MemoryLevel.NORMAL
        used = reading.used_percent + margin
        full = (reading.psi_full_avg10 or 0.0) + margin
        if used >= self._critical_percent or full >= PSI_FULL_PERCENT:
            return MemoryLevel.CRITICAL
        return max(by_os, MemoryLevel.WARN if used >= self._warn_percent else MemoryLevel.NORMAL)
