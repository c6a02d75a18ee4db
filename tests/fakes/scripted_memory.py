"""A fake `MemorySource`: it reads what it was told to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlx_server.services.memory.reading import MemoryReading

TOTAL_BYTES = 16 << 30


def used(percent: float, **fields: Any) -> MemoryReading:
    """A reading of a machine of 16 GB."""
    available = TOTAL_BYTES - round(TOTAL_BYTES * percent / 100)
    return MemoryReading(total_bytes=TOTAL_BYTES, available_bytes=available, **fields)


class ScriptedMemory:
    """Plays `readings`, one a read, and stays at the last. A reading that is an error is raised.

    processes: what was asked for last. reads: how often.
    """

    def __init__(self, *readings: MemoryReading | OSError) -> None:
        self._readings = list(readings) or [used(50)]
        self._on_event: Callable[[], None] | None = None
        self.processes: dict[str, int] = {}
        self.reads = 0
        self.closed = False

    def read(self, processes: Mapping[str, int]) -> MemoryReading:
        self.processes = dict(processes)
        self.reads += 1
        reading = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(reading, OSError):
            raise reading
        return reading

    def watch(self, on_event: Callable[[], None]) -> None:
        self._on_event = on_event

    def close(self) -> None:
        self.closed = True

    def show(self, *readings: MemoryReading) -> None:
        """Play these from now on, and tell as the system would."""
        self._readings = list(readings)
        if self._on_event is not None:
            self._on_event()
