"""The memory limits of the control groups that this process is in (Linux, versions 1 and 2)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 62  # version 1 writes a number near 2^63 for none


@dataclass(slots=True, frozen=True)
class CgroupUsage:
    """Bytes. used_bytes: without the file cache that has not been used lately, which the kernel gives up first."""

    used_bytes: int
    limit_bytes: int


@dataclass(slots=True, frozen=True)
class _Names:
    used: str
    limit: str
    cache: str  # a line of memory.stat


_V2 = _Names("memory.current", "memory.max", "inactive_file")
_V1 = _Names("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")


class Cgroups:
    """The groups of a process, from its own up to the root. Which they are is found once, limits are read each time.

    proc_cgroup: the process's file in /proc. mount: where control groups are mounted.
    """

    def __init__(self, proc_cgroup: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> None:
        self._groups: list[tuple[Path, _Names]] = []
        with contextlib.suppress(OSError):
            for line in proc_cgroup.read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                if not controllers:
                    self._add(mount, path, _V2)
                elif "memory" in controllers.split(","):
                    self._add(mount / "memory", path, _V1)

    def usage(self) -> CgroupUsage | None:
        """Of the group that is closest to its limit; None where none has one."""
        usages = [usage for group, names in self._groups if (usage := _usage(group, names)) is not None]
        return max(usages, key=lambda usage: usage.used_bytes / usage.limit_bytes, default=None)

    def _add(self, root: Path, path: str, names: _Names) -> None:
        """In a container the path may be that outside of it; then the mount is the group."""
        own = root / path.lstrip("/")
        group = own if own.is_dir() else root
        while group.is_relative_to(root):
            if (group / names.limit).is_file():
                self._groups.append((group, names))
            group = group.parent


def _usage(group: Path, names: _Names) -> CgroupUsage | None:
    try:
        limit = (group / names.limit).read_text().strip()
        if limit == "max" or not 0 < int(limit) < _NO_LIMIT:
            return None
        used = int((group / names.used).read_text())
        cache = _line(group / "memory.stat", names.cache)
    except (OSError, ValueError):  # the group is gone
        return None
    return CgroupUsage(max(used - cache, 0), int(limit))


def _line(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
