"""What the daemon and its engines hold: sampled every second, compared at quiet points, and its slope over the run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from tests.chaos.run_state import Run

SAMPLE_S = 1.0
QUIET_S = 30
"""Longest until nothing is held any more after the last answer."""
MAX_GROWTH_MB = 10.0
"""Over the measured part of a run, or two standard errors of the slope if these are more: noise."""
THREADS_LATER = 6
"""Threads that the daemon may start after the baseline: asyncio's pool grows to its size when it is first needed."""
_MEAN_OVER_S = 10
_LAST_CONNECTION_S = 1.0
"""In which the connection that asked for the counters is closed at the other end, too."""
_POLL_S = 0.1
_MB = 1 << 20


@dataclass(slots=True, frozen=True)
class Sample:
    """at_s: of the run. The engine's figures are 0 while there is none."""

    at_s: float
    rss_mb: float
    fds: int
    threads: int
    children: int
    engine_pid: int
    engine_rss_mb: float
    engine_fds: int
    engine_threads: int


@dataclass(slots=True, frozen=True)
class Quiet:
    """What the daemon held when nothing was asked of it."""

    at_s: float
    rss_mb: float
    fds: int
    threads: int
    children: int
    temp_files: int


@dataclass(slots=True)
class Resources:
    """samples: all of them. quiet: the first is the baseline. engines: process id -> start time, of all seen."""

    run: Run
    samples: list[Sample] = field(default_factory=list)
    quiet: list[Quiet] = field(default_factory=list)
    engines: dict[int, float] = field(default_factory=dict)
    _zombies: set[int] = field(default_factory=set)

    async def watch(self) -> None:
        """Sample until cancelled."""
        daemon = psutil.Process(self.run.daemon.pid)
        while True:
            try:
                self._sample(daemon)
            except psutil.NoSuchProcess:
                if self.run.daemon.has_restarted():
                    return
            await asyncio.sleep(SAMPLE_S)

    def _sample(self, daemon: psutil.Process) -> None:
        children = daemon.children(recursive=True)
        zombies = {child.pid for child in children if child.status() == psutil.STATUS_ZOMBIE}
        for pid in zombies & self._zombies:
            self.run.violate(f"process {pid} is a zombie", pid=pid)
        self._zombies = zombies
        alive = [child for child in children if child.pid not in zombies]
        self.engines |= {child.pid: child.create_time() for child in alive}
        engine = alive[-1] if alive else None
        self.samples.append(
            Sample(
                round(self.run.now_s(), 2),
                daemon.memory_info().rss / _MB,
                daemon.num_fds(),
                daemon.num_threads(),
                len(children),
                engine.pid if engine else 0,
                engine.memory_info().rss / _MB if engine else 0.0,
                engine.num_fds() if engine else 0,
                engine.num_threads() if engine else 0,
            )
        )

    async def check_quiet(self) -> None:
        """When nobody asks for anything: nothing is running or held, and nothing is left over since the baseline."""
        if self.run.daemon.has_restarted():
            self.run.violate("the daemon is gone")
            return
        left: list[str] = []
        try:
            async with asyncio.timeout(QUIET_S):
                while left := await self._left_over():  # noqa: ASYNC110 - another process has no events for us
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self.run.violate(f"still held {QUIET_S} s after the last answer: {', '.join(left)}")
        self.quiet.append(self._quiet())

    async def _left_over(self) -> list[str]:
        stats = await self.run.daemon.stats()
        if not stats:
            return ["no engine answers"]
        left = [f"{name} {stats[name]}" for name in ("running", "waiting", "blocks_used") if stats[name]]
        if left:
            return left
        await asyncio.sleep(_LAST_CONNECTION_S)
        if self.quiet:
            now, base = self._quiet(), self.quiet[0]
            limits = {"fds": base.fds, "children": base.children, "temp_files": base.temp_files}
            limits["threads"] = base.threads + THREADS_LATER
            left += [
                f"{name} {getattr(now, name)}, not {limit}"
                for name, limit in limits.items()
                if getattr(now, name) > limit
            ]
        return left

    def _quiet(self) -> Quiet:
        daemon = psutil.Process(self.run.daemon.pid)
        return Quiet(
            round(self.run.now_s(), 2),
            daemon.memory_info().rss / _MB,
            daemon.num_fds(),
            daemon.num_threads(),
            len(daemon.children(recursive=True)),
            sum(len(files) for _, _, files in os.walk(self.run.daemon.temp)),
        )

    def orphans(self) -> list[int]:
        """Engines seen in the run that are still alive; for after the daemon's end."""
        alive = []
        for pid, started_s in self.engines.items():
            try:
                if psutil.Process(pid).create_time() == started_s:
                    alive.append(pid)
            except psutil.NoSuchProcess:
                continue
        return alive

    def check_slope(self, from_s: float) -> dict[str, Any]:
        """Growth of the daemon's memory since `from_s` of the run; a violation if it is more than noise."""
        found = slope(self.samples, from_s)
        if found and found["mb_per_minute"] > found["bound_mb_per_minute"]:
            self.run.violate("the daemon's memory grows", **found)
        return found

    def by_engine(self) -> list[dict[str, Any]]:
        """Each engine's life in figures."""
        lives = []
        for pid in self.engines:
            mine = [sample for sample in self.samples if sample.engine_pid == pid]
            if mine:
                lives.append(
                    {
                        "pid": pid,
                        "from_s": mine[0].at_s,
                        "to_s": mine[-1].at_s,
                        "max_rss_mb": round(max(sample.engine_rss_mb for sample in mine), 1),
                        "last_rss_mb": round(mine[-1].engine_rss_mb, 1),
                        "max_fds": max(sample.engine_fds for sample in mine),
                        "max_threads": max(sample.engine_threads for sample in mine),
                    }
                )
        return lives


def slope(samples: Sequence[Sample], from_s: float) -> dict[str, float]:
    """Least squares through means over 10 s of the daemon's memory; empty when there are fewer than 4 of them.

    The means take most of the dependence between neighbouring samples out of the standard error.
    """
    buckets: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.at_s >= from_s:
            buckets.setdefault(int(sample.at_s // _MEAN_OVER_S), []).append(sample)
    if len(buckets) < 4:
        return {}
    minutes = np.array([np.mean([sample.at_s for sample in bucket]) / 60 for bucket in buckets.values()])
    rss = np.array([np.mean([sample.rss_mb for sample in bucket]) for bucket in buckets.values()])
    rate, start = np.polyfit(minutes, rss, 1)
    residuals = rss - (rate * minutes + start)
    error = np.sqrt(residuals @ residuals / (len(rss) - 2) / np.sum((minutes - minutes.mean()) ** 2))
    return {
        "mb_per_minute": round(float(rate), 4),
        "standard_error": round(float(error), 4),
        "bound_mb_per_minute": round(max(2 * float(error), MAX_GROWTH_MB / float(minutes[-1] - minutes[0])), 4),
        "minutes": round(float(minutes[-1] - minutes[0]), 2),
    }
