"""`EngineProcess`: one engine's process, as the daemon sees it, from spawn to death."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlx_server.core.errors import EngineDeadError, MemoryPressureError, MlxServeError, QueueFullError, RequestError
from mlx_server.core.messages import EngineInfo, EngineStats, GenerateRequest, MemoryLevel, TokenDelta
from mlx_server.core.settings import Settings
from mlx_server.engine import frames
from mlx_server.engine.client import LoadProgress
from mlx_server.engine.watchdog import Watchdog

STOP_S = 10.0
"""How long a process may take to stop in order before it is killed."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended. load_error: it said that the model cannot be loaded. rows: requests that held a row."""

    reason: str
    load_error: str | None
    rows: frozenset[str]


@dataclass(frozen=True, slots=True)
class EngineEvents:
    """What its owner hears of a process, on the event loop. `died` is the last event, and comes exactly once."""

    progress: LoadProgress
    loaded: Callable[[EngineInfo], None]
    deltas: Callable[[Sequence[TokenDelta]], None]
    refused: Callable[[str, MlxServeError], None]
    died: Callable[[Death], None]


class EngineProcess:
    """Owned by a supervisor, on one event loop. Created with `spawn`."""

    def __init__(self, child: subprocess.Popen[bytes], settings: Settings, events: EngineEvents) -> None:
        self._child = child
        self._events = events
        self._connection = frames.Connection(frames.decoder_of_daemon(), self._take, self._lost)
        self._watchdog = Watchdog(settings.step_timeout_s, self._hung)
        self._attempts: set[str] = set()
        self._rows: set[str] = set()
        self._waiting_for_stats: list[asyncio.Future[EngineStats]] = []
        self._is_loaded = False
        self._load_error: str | None = None
        self._why: str | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        settings: Settings,
        model_path: Path,
        model_id: str,
        is_proven: bool,
        events: EngineEvents,
    ) -> EngineProcess:
        """Start a process and let it load. Raises `OSError` when there is no process to be had.

        The process leads a session of its own, so a terminal's signals reach the daemon alone.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                child = subprocess.Popen(  # noqa: ASYNC220, S603 - our own command; it is waited for elsewhere
                    [*command, "--fd", str(theirs.fileno()), "--parent", str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        process = cls(child, settings, events)
        await asyncio.get_running_loop().create_connection(lambda: process._connection, sock=ours)
        process._watchdog.on()
        start = frames.Start(settings.model_dump_json().encode(), str(model_path), model_id, is_proven)
        process._connection.send(start)
        return process

    @property
    def pid(self) -> int:
        return self._child.pid

    def submit(self, request: GenerateRequest) -> None:
        """Only after `loaded`. What is wrong with the request comes back as `refused`."""
        self._attempts.add(request.request_id)
        self._watchdog.on()
        self._connection.send(frames.Submit(request))

    def cancel(self, attempt: str) -> None:
        """End a request."""
        if attempt in self._attempts:
            self._over(attempt)
            self._connection.send(frames.Cancel(attempt))

    def set_memory_level(self, level: MemoryLevel) -> None:
        """Only after `loaded`."""
        self._connection.send(frames.SetMemoryLevel(level))

    async def stats(self) -> EngineStats:
        """Raises `EngineDeadError` when the process dies first."""
        future: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._waiting_for_stats.append(future)
        self._connection.send(frames.AskStats())
        return await future

    def kill(self, why: str) -> None:
        """End it at once; `died` follows with this reason."""
        self._why = self._why or why
        self._child.kill()

    async def stop(self) -> None:
        """End it in order, or after `STOP_S` at once. Returns when the process is gone."""
        self._why = self._why or "it was stopped"
        self._connection.send(frames.Stop())
        try:
            async with asyncio.timeout(STOP_S):
                await self._gone.wait()
        except TimeoutError:
            self._child.kill()
            await self._gone.wait()

    # ---- what comes from the process -------------------------------------------------------------

    def _take(self, frame: frames.FromEngine) -> None:
        self._watchdog.heard()
        match frame:
            case frames.Deltas(deltas):
                for delta in deltas:
                    if delta.finish_reason is not None:
                        self._over(delta.request_id)
                self._events.deltas(deltas)
            case frames.Rows(joined, left):
                self._rows.difference_update(left)
                self._rows.update(joined)
            case frames.Heartbeat(step_age_s):
                self._watchdog.heartbeat(step_age_s)
            case frames.QueueFull(attempt, limit, retry_after_s, whose):
                self._refuse(attempt, QueueFullError(limit, retry_after_s, whose))
            case frames.NoMemory(attempt, retry_after_s):
                self._refuse(attempt, MemoryPressureError(retry_after_s))
            case frames.Refused(attempt, message, field, code):
                self._refuse(attempt, RequestError(message, field, code))
            case frames.Stats(stats):
                self._settle(stats)
            case frames.Progress(stage, fraction):
                self._events.progress(stage, fraction)
            case frames.Loaded(info):
                self._is_loaded = True
                self._watchdog.loaded()
                self._rest_if_idle()
                self._events.loaded(info)
            case frames.LoadFailed(reason):
                self._load_error = reason
                self._why = f"the model could not be loaded: {reason}"
            case frames.Ended(reason):
                self._why = reason

    def _refuse(self, attempt: str, error: MlxServeError) -> None:
        self._over(attempt)
        self._events.refused(attempt, error)

    def _over(self, attempt: str) -> None:
        self._attempts.discard(attempt)
        self._rest_if_idle()

    def _rest_if_idle(self) -> None:
        if self._is_loaded and not self._attempts:
            self._watchdog.off()

    def _settle(self, stats: EngineStats) -> None:
        waiting, self._waiting_for_stats = self._waiting_for_stats, []
        for future in waiting:
            if not future.done():
                future.set_result(stats)

    def _hung(self, why: str) -> None:
        logger.error("the engine (process %d) hangs: %s", self.pid, why)
        self.kill(f"it hung: {why}")

    def _lost(self) -> None:
        self._watchdog.off()
        self._reaping = asyncio.ensure_future(self._reap())

    async def _reap(self) -> None:
        """The socket is closed, so the process is dead or about to be. Nobody is left behind, also not a zombie."""
        try:
            async with asyncio.timeout(STOP_S):
                status = await asyncio.to_thread(self._child.wait)
        except TimeoutError:
            self._child.kill()
            status = await asyncio.to_thread(self._child.wait)
        for future in self._waiting_for_stats:
            if not future.done():
                future.set_exception(EngineDeadError("the engine's process has ended"))
        self._gone.set()
        reason = self._why or _describe(status)
        self._events.died(Death(reason, self._load_error, frozenset(self._rows & self._attempts)))


def _describe(status: int) -> str:
    if status >= 0:
        return f"its process exited with status {status}"
    try:
        return f"its process was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"its process was killed by signal {-status}"
