"""Memory on macOS: Mach's counts of pages, the kernel's level of pressure, footprints of processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import psutil

from mlx_server.core.messages import MemoryLevel
from mlx_server.services.memory import libsystem
from mlx_server.services.memory.dispatch import PressureEvents
from mlx_server.services.memory.libsystem import VMStatistics64
from mlx_server.services.memory.reading import MemoryReading

_LEVEL = "kern.memorystatus_vm_pressure_level"
_LEVELS = {1: MemoryLevel.NORMAL, 2: MemoryLevel.WARN, 4: MemoryLevel.CRITICAL}

T = TypeVar("T")

logger = logging.getLogger(__name__)


class MacOSMemory:
    """Implements `MemorySource`. What the system does not answer is said once, and comes from psutil or is left out."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._missing: set[str] = set()
        self._events: PressureEvents | None = None

    def read(self, processes: Mapping[str, int]) -> MemoryReading:
        """See `MemorySource.read`."""
        machine = psutil.virtual_memory()
        available, compressor = machine.available, None
        counts = self._ask("the counts of pages", libsystem.vm_statistics)
        if counts is not None:
            available = machine.total - used_pages(counts) * self._page_bytes
            compressor = counts.compressor_page_count * self._page_bytes
        level = self._ask("the level of pressure", lambda: libsystem.sysctl_int(_LEVEL))
        return MemoryReading(
            total_bytes=machine.total,
            available_bytes=available,
            swap_used_bytes=psutil.swap_memory().used,
            compressor_bytes=compressor,
            os_level=_LEVELS.get(level) if level is not None else None,
            footprint_bytes={
                name: footprint for name, pid in processes.items() if (footprint := self._footprint(pid)) is not None
            },
        )

    def watch(self, on_event: Callable[[], None]) -> None:
        """See `MemorySource.watch`."""
        self._events = self._ask("events about memory", lambda: PressureEvents(on_event))

    def close(self) -> None:
        """See `MemorySource.close`."""
        if self._events is not None:
            self._events.close()

    def _footprint(self, pid: int) -> int | None:
        try:
            process = psutil.Process(pid)
            footprint = self._ask("the footprint of a process", lambda: libsystem.phys_footprint(pid))
            return footprint if footprint is not None else int(process.memory_info().rss)
        except psutil.Error:  # it is gone
            return None

    def _ask(self, what: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except OSError as error:
            if what not in self._missing:
                self._missing.add(what)
                logger.warning("the system does not tell %s: %s", what, error)
            return None


def used_pages(counts: VMStatistics64) -> int:
    """Pages that are wired, hold compressed ones, or belong to programs; not those of files, nor what programs have
    marked as purgeable: the kernel takes these back at once. Activity Monitor calls the sum 'Memory Used'."""
    own = counts.internal_page_count - counts.purgeable_count
    return int(counts.wire_count + counts.compressor_page_count + own)
