"""`MemorySource`: where readings come from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from mlx_server.services.memory.reading import MemoryReading


class MemorySource(Protocol):
    """Belongs to one event loop."""

    def read(self, processes: Mapping[str, int]) -> MemoryReading:
        """Read now; takes less than a millisecond. processes: ids by name; one that is gone is left out.

        Raises `OSError` when the system does not tell even how much memory there is.
        """
        ...

    def watch(self, on_event: Callable[[], None]) -> None:
        """From now on call `on_event`, on the running event loop, when the system says that memory is getting short.

        Called once. Where the system tells nobody, `on_event` is never called.
        """
        ...

    def close(self) -> None:
        """Watch no more. Idempotent."""
        ...


def system_source() -> MemorySource:
    """The source of this machine."""
    if sys.platform == "darwin":
        from mlx_server.services.memory.macos import MacOSMemory

        return MacOSMemory()
    from mlx_server.services.memory.linux import LinuxMemory

    return LinuxMemory()
