"""The async scheduling loop: feeds the generation thread, takes its results, hands tokens to their streams."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

import msgspec

from mlx_server.core.errors import EngineDeadError
from mlx_server.core.messages import EngineStats, FinishReason, GenerateRequest, TokenDelta
from mlx_server.core.step import DeviceMemory, StepPlan, StepResult
from mlx_server.engine.generation_thread import GenerationThread
from mlx_server.services.batching.scheduler import Scheduler

STEPS_IN_FLIGHT = 2
"""One step runs while the next is planned and launched: its decode inputs stay on the device."""

log = logging.getLogger(__name__)


class EngineCore:
    """Owns the scheduler and the streams, on the event loop. The loop sleeps on an event; nothing polls."""

    def __init__(
        self, scheduler: Scheduler, thread: GenerationThread, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.scheduler = scheduler
        self._thread = thread
        self._clock = clock
        self._signal = asyncio.Event()
        self._results: deque[StepResult] = deque()
        self._in_flight: deque[StepPlan] = deque()
        self._streams: dict[str, asyncio.Queue[TokenDelta]] = {}
        self._drain_asked = False
        self._epoch = 0
        self._closing = False
        self._failure: BaseException | None = None
        self._ended: str | None = None
        self._memory: DeviceMemory | None = None

    # ---- in --------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> asyncio.Queue[TokenDelta]:
        """Submit; the queue gets every delta, the last with a finish reason.

        Raises as `Scheduler.add`, and `EngineDeadError` once the loop has ended: nobody would answer.
        """
        if self._ended is not None:
            raise EngineDeadError(self._ended)
        self.scheduler.add(request, self._clock())
        stream: asyncio.Queue[TokenDelta] = asyncio.Queue()
        self._streams[request.request_id] = stream
        self._signal.set()
        return stream

    def cancel(self, request_id: str) -> None:
        """End a request if it is alive: its row and blocks go at the next step boundary."""
        if self.scheduler.cancel(request_id):
            self._dispatch(self.scheduler.take_undelivered())
            self._signal.set()

    def take_result(self, result: StepResult) -> None:
        """Callback of the generation thread, on the event loop."""
        self._results.append(result)
        self._signal.set()

    def fail(self, error: BaseException) -> None:
        """The generation thread is gone: end every request with this reason."""
        self._failure = error
        self._signal.set()

    def stats(self) -> EngineStats:
        """Counters of the scheduler, and the device's memory after the last step."""
        stats, memory = self.scheduler.stats(), self._memory
        if memory is None:
            return stats
        return msgspec.structs.replace(
            stats,
            active_bytes=memory.active,
            peak_bytes=memory.peak,
            kept_kv_bytes=memory.kept,
            tail_kv_bytes=memory.tails,
        )

    # ---- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `close`. A bug in here ends every request with its reason instead of leaving it waiting."""
        try:
            while not self._closing:
                if self._failure is not None:
                    why = f"{type(self._failure).__name__}: {self._failure}"
                    raise EngineDeadError(f"the generation thread ended: {why}") from self._failure
                self._signal.clear()
                self._take_results()
                if not self._plan_next():
                    await self._signal.wait()
        except Exception as error:
            log.exception("the scheduling loop has failed")
            self._end_all(FinishReason.ERROR, f"the engine failed: {type(error).__name__}: {error}")
            raise
        self._end_all(FinishReason.ABORT, "the engine was stopped")

    def close(self) -> None:
        """Let `run` return after ending every request."""
        self._closing = True
        self._signal.set()

    def _take_results(self) -> None:
        while self._results:
            plan, result = self._in_flight.popleft(), self._results.popleft()
            self._dispatch(self.scheduler.update(plan, result))
            self._memory = result.memory or self._memory
            if result.error is not None:
                self._epoch += 1

    def _plan_next(self) -> bool:
        """Submit one plan if there is one to submit. Whether it may be worth trying again at once."""
        if len(self._in_flight) >= STEPS_IN_FLIGHT:
            return False
        plan = self.scheduler.schedule(self._clock())
        if plan is None:
            if self._in_flight and not self._drain_asked:
                self._thread.drain()
                self._drain_asked = True
            return False
        self._in_flight.append(plan)
        self._thread.submit(plan, self._epoch)
        self._drain_asked = False
        return True

    def _dispatch(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is None:
                continue
            stream.put_nowait(delta)
            if delta.finish_reason is not None:
                del self._streams[delta.request_id]

    def _end_all(self, reason: FinishReason, why: str) -> None:
        self._ended = why
        for request_id in list(self._streams):
            self._dispatch([TokenDelta(request_id=request_id, finish_reason=reason, error=why)])
