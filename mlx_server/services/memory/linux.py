"""Memory on Linux: /proc/meminfo, control groups, pressure stall information, /proc/PID/status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from mlx_server.services.memory.cgroup import Cgroups
from mlx_server.services.memory.psi import PsiTrigger, read_psi
from mlx_server.services.memory.reading import MemoryReading

_OWN_MEMORY = ("RssAnon", "RssShmem", "VmSwap")

logger = logging.getLogger(__name__)


class LinuxMemory:
    """Implements `MemorySource`."""

    def __init__(self, cgroups: Cgroups | None = None) -> None:
        self._cgroups = cgroups or Cgroups()
        self._trigger: PsiTrigger | None = None

    def read(self, processes: Mapping[str, int]) -> MemoryReading:
        """See `MemorySource.read`."""
        machine = psutil.virtual_memory()
        group = self._cgroups.usage()
        some, full = read_psi()
        return MemoryReading(
            total_bytes=machine.total,
            available_bytes=machine.available,
            swap_used_bytes=psutil.swap_memory().used,
            cgroup_used_bytes=group.used_bytes if group is not None else None,
            cgroup_limit_bytes=group.limit_bytes if group is not None else None,
            psi_some_avg10=some,
            psi_full_avg10=full,
            footprint_bytes={
                name: footprint for name, pid in processes.items() if (footprint := footprint_of(pid)) is not None
            },
        )

    def watch(self, on_event: Callable[[], None]) -> None:
        """See `MemorySource.watch`."""
        try:
            self._trigger = PsiTrigger(on_event)
        except OSError as error:
            logger.info("the kernel gives no events about memory (%s); it is read at intervals only", error.strerror)

    def close(self) -> None:
        """See `MemorySource.close`."""
        if self._trigger is not None:
            self._trigger.close()


def footprint_of(pid: int) -> int | None:
    """Bytes of a process's own memory, in RAM or swapped out; None when it is gone.

    The kernel keeps these figures; those of smaps would make it walk the page tables of all the weights.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines)
    return sum(int(values[key].split()[0]) << 10 for key in _OWN_MEMORY if key in values)
