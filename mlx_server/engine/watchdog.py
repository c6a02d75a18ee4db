"""Tells when an engine's process has stopped working without having died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SILENCE_S = 15.0
"""An engine with work to do sends a heartbeat every second; one that is silent for so long hangs."""

LOADING_SILENCE_S = 120.0
"""While it loads: reading weights or compiling may hold the interpreter for long."""

_TICK_S = 1.0


class Watchdog:
    """Looks once a second while it is on, and not at all otherwise. Belongs to one event loop.

    on_hung: called once, with what is wrong.
    """

    def __init__(self, step_timeout_s: float, on_hung: Callable[[str], None]) -> None:
        self._step_timeout_s = step_timeout_s
        self._on_hung = on_hung
        self._silence_s = LOADING_SILENCE_S
        self._heard_s = 0.0
        self._looks_at_s = 0.0
        self._step_age_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def loaded(self) -> None:
        """From now on `SILENCE_S` counts."""
        self._silence_s = SILENCE_S

    def on(self) -> None:
        """There is work. Idempotent."""
        if self._timer is None:
            self._heard_s = time.monotonic()
            self._step_age_s = 0.0
            self._look_later()

    def off(self) -> None:
        """There is no work, and silence is fine. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def heard(self) -> None:
        """A frame has come."""
        self._heard_s = time.monotonic()

    def heartbeat(self, step_age_s: float) -> None:
        """A heartbeat has come: the oldest step in flight has been running for so long."""
        self._step_age_s = step_age_s

    def _look_later(self) -> None:
        self._looks_at_s = time.monotonic() + _TICK_S
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looks_at_s > _TICK_S:
            # We were stopped ourselves (a debugger, a machine that slept): what came meanwhile is not read yet.
            self._heard_s = now
        silent_s = now - self._heard_s
        if silent_s > self._silence_s:
            self._hung(f"it has said nothing for {silent_s:.0f} s")
        elif self._step_age_s > self._step_timeout_s:
            self._hung(f"a step has not ended after {self._step_age_s:.0f} s")
        else:
            self._look_later()

    def _hung(self, why: str) -> None:
        self._timer = None
        self._on_hung(why)
