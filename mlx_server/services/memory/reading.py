"""`MemoryReading`: the memory of the machine and of our processes at one moment."""

from __future__ import annotations

import msgspec

from mlx_server.core.messages import MemoryLevel


class MemoryReading(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """None stands for what the system does not tell.

    available_bytes: what programs could still get without anything being compressed or swapped out.
    cgroup_used_bytes, cgroup_limit_bytes: of the control group that is closest to its limit (Linux); caches that the
        kernel would give up at once do not count as used.
    compressor_bytes: memory that holds compressed pages (macOS).
    os_level: the system's own verdict (macOS).
    psi_some_avg10, psi_full_avg10: percent of the last ten seconds in which some, or all, tasks waited for memory
        (Linux).
    footprint_bytes: of each process of ours, by its name, what would come back if it ended: memory of its own, also
        that compressed or swapped out, without the files it has mapped.
    """

    total_bytes: int
    available_bytes: int
    swap_used_bytes: int = 0
    cgroup_used_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    compressor_bytes: int | None = None
    os_level: MemoryLevel | None = None
    psi_some_avg10: float | None = None
    psi_full_avg10: float | None = None
    footprint_bytes: dict[str, int] = {}

    @property
    def used_percent(self) -> float:
        """Of the machine, or of the control group where that is fuller."""
        machine = 1 - self.available_bytes / self.total_bytes
        if self.cgroup_used_bytes is None or not self.cgroup_limit_bytes:
            return 100 * machine
        return 100 * max(machine, self.cgroup_used_bytes / self.cgroup_limit_bytes)
