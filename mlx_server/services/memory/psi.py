"""Linux's pressure stall information: how much time tasks lose waiting for memory, and a call when they do."""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

PSI_FILE = Path("/proc/pressure/memory")

TRIGGER = b"some 150000 2000000"
"""Microseconds that some task waited, within a window. Without privileges the window must be a multiple of 2 s."""

_select: Any = select  # its types know epoll on Linux only, and this is checked on macOS too

logger = logging.getLogger(__name__)


def read_psi(path: Path = PSI_FILE) -> tuple[float | None, float | None]:
    """(some, full) in percent over the last ten seconds; None where the kernel does not tell."""
    try:
        lines = path.read_text().splitlines()
    except OSError:  # built without PSI, or it is switched off
        return None, None
    averages = {fields[0]: float(fields[1].removeprefix("avg10=")) for line in lines if (fields := line.split())}
    return averages.get("some"), averages.get("full")


class PsiTrigger:
    """Calls `on_event` on the running event loop, at most every two seconds, when tasks wait for memory.

    Raises `OSError` where the kernel refuses triggers to this user.
    """

    def __init__(self, on_event: Callable[[], None], path: Path = PSI_FILE) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(self._fd, TRIGGER + b"\0")
            self._events = UrgentEvents(self._fd, on_event)
        except OSError:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            self._events.close()
            os.close(self._fd)
            self._fd = -1


class UrgentEvents:
    """Calls `on_event` on the running event loop for each POLLPRI of a descriptor, which event loops do not look for.

    They look at an epoll of its own instead, which is readable when it has something.
    """

    def __init__(self, fd: int, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._epoll = _select.epoll()
        self._epoll.register(fd, _select.EPOLLPRI)
        self._loop.add_reader(self._epoll.fileno(), self._readable)

    def _readable(self) -> None:
        """A trigger's event is gone once anybody has seen it, and the event loop's own epoll has: so that it was seen
        is the event, and `poll` only says whether there will be more."""
        if any(mask & _select.EPOLLERR for _, mask in self._epoll.poll(0)):
            logger.info("the kernel has ended its events about memory")
            self.close()
            return
        self._on_event()

    def close(self) -> None:
        """Idempotent. The descriptor stays open."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
