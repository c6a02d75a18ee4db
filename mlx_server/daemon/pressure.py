"""Watching the machine's memory: the newest reading for all to see, and its level for the engine to act on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlx_server.api.serving import ServingState
from mlx_server.core.errors import MlxServeError
from mlx_server.core.messages import MemoryLevel
from mlx_server.services.memory.levels import LevelTracker
from mlx_server.services.memory.reading import MemoryReading
from mlx_server.services.memory.source import MemorySource

logger = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Pace:
    """Seconds between two readings.

    least_s: whatever happens. busy_s: while requests are answered or the model loads. idle_s: otherwise, by level; an
    event of the system and the first request make it sooner.
    """

    least_s: float = 1.0
    busy_s: float = 1.0
    idle_s: Mapping[MemoryLevel, float] = field(
        default_factory=lambda: {MemoryLevel.NORMAL: 10.0, MemoryLevel.WARN: 2.0, MemoryLevel.CRITICAL: 1.0}
    )


class PressureWatch:
    """Fills in `serving.memory` and `serving.memory_level`, and tells the engine each new level; one that is not there
    yet, when it is. Owned by the daemon's event loop.
    """

    def __init__(self, serving: ServingState, source: MemorySource, pace: Pace | None = None) -> None:
        self._serving = serving
        self._source = source
        self._pace = pace or Pace()
        settings = serving.settings
        self._levels = LevelTracker(settings.memory_warn_percent, settings.memory_critical_percent)
        self._told = MemoryLevel.NORMAL  # what an engine takes for granted
        self._is_unreadable = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read, and go on reading until `stop`."""
        self._look()
        self._source.watch(self._serving.look_at_memory.set)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(_log_failure)

    async def stop(self) -> None:
        """Close the source. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._source.close()

    async def _run(self) -> None:
        soon = self._serving.look_at_memory
        while True:
            read_s = time.monotonic()
            await self._tell()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s()):
                    await soon.wait()
            await asyncio.sleep(read_s + self._pace.least_s - time.monotonic())
            soon.clear()
            self._look()

    def _interval_s(self) -> float:
        is_busy = self._serving.answering or self._serving.model is None
        return self._pace.busy_s if is_busy else self._pace.idle_s[self._levels.level]

    def _look(self) -> None:
        serving = self._serving
        try:
            reading = self._source.read(self._processes())
        except OSError as error:
            if not self._is_unreadable:
                logger.error("the memory of this machine cannot be read: %s", error)
            self._is_unreadable = True
            return
        before = serving.memory_level
        serving.memory = reading
        serving.memory_level = self._levels.update(reading, time.monotonic())
        if serving.memory_level is not before:
            _log(serving.memory_level, before, reading)

    def _processes(self) -> dict[str, int]:
        processes = {"daemon": os.getpid()}
        if self._serving.model is not None and self._serving.model.engine.pid:
            processes["engine"] = self._serving.model.engine.pid
        return processes

    async def _tell(self) -> None:
        level, model = self._levels.level, self._serving.model
        if level is self._told or model is None:
            return
        try:
            await model.engine.set_memory_level(level)
        except MlxServeError as error:
            logger.debug("the engine was not told the level of memory: %s", error)
        else:
            self._told = level


def _log(level: MemoryLevel, before: MemoryLevel, reading: MemoryReading) -> None:
    severity = logging.WARNING if level > before else logging.INFO
    about = [f"{reading.used_percent:.0f} % used", f"{reading.available_bytes / 2**30:.1f} GB available"]
    if reading.os_level is not None:
        about.append(f"{reading.os_level.name.lower()} to the system")
    if reading.psi_full_avg10:
        about.append(f"{reading.psi_full_avg10:.0f} % of the time lost waiting for it")
    logger.log(severity, "memory: %s, was %s (%s)", level.name.lower(), before.name.lower(), ", ".join(about))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("memory is not watched any more", exc_info=error)
