"""`SupervisedEngine`: an engine that survives its process.

Every request's prompt and tokens are held here. When the process dies, however it does, another one is started and
the requests go on in it where they stood. Which request to give up, when one of them is what kills the process, is
decided by `core/blame.py`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from mlx_server.core.blame import Blame
from mlx_server.core.errors import (
    EngineDeadError,
    EngineNotReadyError,
    MemoryPressureError,
    MlxServeError,
    ModelLoadError,
)
from mlx_server.core.messages import EngineInfo, EngineStats, FinishReason, GenerateRequest, MemoryLevel, TokenDelta
from mlx_server.core.settings import MIN_KV_MEMORY, Settings
from mlx_server.engine.client import LoadProgress
from mlx_server.engine.engine_process import Death, EngineEvents, EngineProcess
from mlx_server.engine.streams import Streams, TokenStream

ENGINE_COMMAND = (sys.executable, "-P", "-m", "mlx_server.engine.process_main")
"""-P: nothing is imported from the folder in which the daemon was started."""

FIRST_BACKOFF_S = 0.25
"""Before the second restart in a row without a token in between; it doubles from then on. The first is at once."""

LONGEST_BACKOFF_S = 30.0

GIVE_UP_AFTER = 5
"""Processes in a row that could not load the model, after which requests no longer wait for the next one."""

_STATS_TIMEOUT_S = 1.0

logger = logging.getLogger(__name__)


class SupervisedEngine:
    """Implements `EngineClient`. Created anywhere, used from one event loop.

    command: starts an engine's process; for fault injection.
    """

    def __init__(
        self,
        settings: Settings,
        model_path: Path,
        model_id: str,
        on_progress: LoadProgress | None = None,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self._settings = settings
        self._model_path = model_path
        self._model_id = model_id
        self._on_progress = on_progress
        self._command = command
        self._streams = Streams(self._submit, self._cancel, self._closed)
        self._blame = Blame()
        self._parked: dict[str, TokenStream] = {}  # those that wait for a process, in the order of their arrival
        self._process: EngineProcess | None = None  # from its spawn to its death
        self._is_ready = False  # `_process` has loaded the model
        self._info: EngineInfo | None = None
        self._loading: asyncio.Future[EngineInfo] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._dead: str | None = None
        self._given_up: str | None = None
        self._deaths_in_a_row = 0  # without a token in between
        self._failed_loads_in_a_row = 0
        self._restarts = 0
        self._resumed = 0
        self._died_s = 0.0
        self._last_stats: EngineStats | None = None
        self._memory_level = MemoryLevel.NORMAL

    # ---- EngineClient ----------------------------------------------------------------------------

    async def start(self) -> EngineInfo:
        """See `EngineClient.start`."""
        if self._dead is not None and (self._loading is None or self._info is not None):
            raise EngineDeadError(self._dead)
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_future()
            try:
                await self._spawn()
            except OSError as error:
                self._first_load_failed(f"no process can be started for it: {error}")
        return await asyncio.shield(self._loading)

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`. While a process is being replaced, that of the one before."""
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        if self._info is None:
            raise EngineNotReadyError()
        if self._given_up is not None:
            raise EngineNotReadyError(int(LONGEST_BACKOFF_S), self._given_up)
        return self._info

    @property
    def is_restarting(self) -> bool:
        """See `EngineClient.is_restarting`."""
        return self._dead is None and self._info is not None and not self._is_ready

    @property
    def pid(self) -> int:
        """See `EngineClient.pid`."""
        return self._process.pid if self._process is not None else 0

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `EngineClient.generate`."""
        return self._streams.generate(request)

    async def set_memory_level(self, level: MemoryLevel) -> None:
        """See `EngineClient.set_memory_level`. A process that replaces this one is told, too."""
        self._memory_level = level
        if self._process is not None and self._is_ready:
            self._process.set_memory_level(level)

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`. Of a process that does not answer, the last ones known."""
        if self._info is None:
            raise EngineNotReadyError()
        if self._process is not None and self._is_ready:
            try:
                async with asyncio.timeout(_STATS_TIMEOUT_S):
                    number = self._restarts
                    self._last_stats = replace(await self._process.stats(), process_number=number)
            except (TimeoutError, EngineDeadError) as error:
                logger.debug("no figures from the engine: %s", error)
        stats = self._last_stats or _no_stats()
        waiting = list(stats.waiting_by_priority)
        for stream in self._parked.values():
            waiting[stream.request.priority] += 1
        return replace(
            stats,
            pid=self.pid,
            waiting=stats.waiting + len(self._parked),
            waiting_by_priority=(waiting[0], waiting[1], waiting[2]),
            streams=len(self._streams),
            paused_streams=self._streams.num_paused,
            restarts=self._restarts,
            resumed=self._resumed,
        )

    async def close(self) -> None:
        """See `EngineClient.close`."""
        if self._dead is None:
            self._dead = "the engine was stopped"
        self._streams.end_all(FinishReason.ABORT, "the engine was stopped")
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        if self._process is not None:
            await self._process.stop()
        if self._loading is not None and not self._loading.done():
            self._loading.set_exception(EngineDeadError(self._dead))
            self._loading.exception()  # there may be nobody who waits for it

    # ---- requests --------------------------------------------------------------------------------

    def _submit(self, stream: TokenStream) -> None:
        _ = self.info  # raises when nobody would answer
        if self._memory_level is MemoryLevel.CRITICAL and not stream.attempts:
            raise MemoryPressureError
        self._parked[stream.id] = stream
        self._unpark()

    def _unpark(self) -> None:
        """Hand over every request that waits and may start."""
        if self._process is None or not self._is_ready:
            return
        for stream in list(self._parked.values()):
            if self._blame.may_start(stream.id):
                del self._parked[stream.id]
                self._blame.started(stream.id)
                self._process.submit(self._streams.attempt(stream))

    def _cancel(self, attempt: str) -> None:
        if self._process is not None:
            self._process.cancel(attempt)

    def _closed(self, stream: TokenStream) -> None:
        self._parked.pop(stream.id, None)
        self._over(stream)

    def _over(self, stream: TokenStream) -> None:
        self._blame.forget(stream.id)
        self._unpark()

    # ---- what the process says -------------------------------------------------------------------

    async def _spawn(self) -> None:
        events = EngineEvents(self._progress, self._loaded, self._take, self._refused, self._died)
        settings = self._settings
        if self._info is not None and settings.kv_blocks is None:
            # Requests in flight were admitted for a pool that may have this size.
            info = self._info
            budget = info.num_blocks * info.block_size * info.kv_bytes_per_token
            settings = settings.model_copy(update={"kv_memory": max(budget, MIN_KV_MEMORY)})
        self._process = await EngineProcess.spawn(
            self._command, settings, self._model_path, self._model_id, self._info is not None, events
        )

    def _progress(self, stage: str, fraction: float) -> None:
        if self._on_progress is not None and self._info is None:
            self._on_progress(stage, fraction)

    def _loaded(self, info: EngineInfo) -> None:
        assert self._loading is not None and self._process is not None
        self._is_ready = True
        self._given_up = None
        self._failed_loads_in_a_row = 0
        self._process.set_memory_level(self._memory_level)
        if self._info is None:
            self._info = info
            self._loading.set_result(info)
            return
        logger.warning(
            "the engine is back after %.1f s as process %d; %d requests go on",
            time.monotonic() - self._died_s, self._process.pid, len(self._parked),
        )  # fmt: skip
        self._resumed += len(self._parked)
        self._unpark()

    def _take(self, deltas: Sequence[TokenDelta]) -> None:
        self._deaths_in_a_row = 0
        ended = []
        for delta in deltas:
            stream = self._streams.of_attempt(delta.request_id)
            if stream is None:
                continue
            if delta.finish_reason is not None:
                ended.append(stream)
            elif stream.id in self._blame.in_doubt:
                self._blame.progressed(stream.id, len(stream.tokens) + len(delta.token_ids))
        self._streams.deliver(deltas)
        for stream in ended:
            self._over(stream)
        if self._parked:
            self._unpark()

    def _refused(self, attempt: str, error: MlxServeError) -> None:
        stream = self._streams.of_attempt(attempt)
        if stream is not None:
            self._streams.fail(stream, error)
            self._over(stream)

    def _died(self, death: Death) -> None:
        self._process = None
        self._is_ready = False
        if self._dead is not None:
            return
        if self._info is None:
            self._first_load_failed(death.load_error or f"while loading, {death.reason}")
            return
        self._died_s = time.monotonic()
        self._find_culprit(death)
        self._streams.lose_all()
        self._parked = {stream.id: stream for stream in self._streams.unfinished() if not stream.is_paused}
        self._restarts += 1
        self._deaths_in_a_row += 1
        if death.load_error is not None:
            self._failed_loads_in_a_row += 1
        self._restarting = asyncio.create_task(self._restart(death))

    def _first_load_failed(self, reason: str) -> None:
        assert self._loading is not None
        self._dead = f"the model could not be loaded: {reason}"
        if not self._loading.done():
            self._loading.set_exception(ModelLoadError(reason))

    def _find_culprit(self, death: Death) -> None:
        held = [stream for row in death.rows if (stream := self._streams.of_attempt(row)) is not None]
        if not held:
            self._blame.all_stopped()
            return
        culprit = self._blame.failed({stream.id: len(stream.tokens) + 1 for stream in held})
        for stream in held:
            if stream.id == culprit:
                logger.error("request %s has ended the engine twice (%s); it is given up", stream.id, death.reason)
                why = f"this request has ended the engine twice and is not tried again ({death.reason})"
                self._streams.end(stream, FinishReason.ERROR, why)

    # ---- restart ---------------------------------------------------------------------------------

    async def _restart(self, death: Death) -> None:
        wait_s = self._backoff_s()
        logger.error(
            "the engine has died: %s; %d requests wait; restart in %.2g s", death.reason, len(self._parked), wait_s
        )
        if self._failed_loads_in_a_row >= GIVE_UP_AFTER:
            self._given_up = f"the engine cannot be restarted ({death.reason}); the next attempt is in {wait_s:.0f} s"
            self._parked.clear()
            self._streams.end_all(FinishReason.ABORT, self._given_up)
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self._spawn()
            except OSError as error:
                wait_s = LONGEST_BACKOFF_S
                logger.error("no process can be started for the engine: %s; again in %.0f s", error, wait_s)
            else:
                return

    def _backoff_s(self) -> float:
        if self._deaths_in_a_row <= 1:
            return 0.0
        return min(FIRST_BACKOFF_S * 2.0 ** (self._deaths_in_a_row - 2), LONGEST_BACKOFF_S)


def _no_stats() -> EngineStats:
    counters = (field.name for field in msgspec.structs.fields(EngineStats) if field.required)
    return msgspec.convert(dict.fromkeys(counters, 0), EngineStats)
