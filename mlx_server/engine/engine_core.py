"""The async scheduling loop: feeds the generation thread, takes its results, hands the tokens on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from mlx_server.core.errors import EngineDeadError
from mlx_server.core.messages import EngineStats, GenerateRequest, MemoryLevel, TokenDelta
from mlx_server.core.step import DeviceMemory, StepPlan, StepResult
from mlx_server.engine.generation_thread import GenerationThread
from mlx_server.services.batching.scheduler import Scheduler

STEPS_IN_FLIGHT = 2
"""One step runs while the next is planned and launched: its decode inputs stay on the device."""

Deliver = Callable[[Sequence[TokenDelta]], None]
"""Gets the deltas of a step, on the event loop."""

NoteRows = Callable[[Sequence[str], Sequence[str]], None]
"""Gets the requests that take and give up a row in the plan that is about to be submitted: (joined, left)."""

log = logging.getLogger(__name__)


class EngineCore:
    """Owns the scheduler, on the event loop. The loop sleeps on an event; nothing polls.

    clock: seconds, monotonic. Of the queue alone; nothing else here depends on it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        thread: GenerationThread,
        deliver: Deliver,
        note_rows: NoteRows | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self._thread = thread
        self._deliver = deliver
        self._note_rows = note_rows
        self._clock = clock
        self._signal = asyncio.Event()
        self._results: deque[StepResult] = deque()
        self._in_flight: deque[StepPlan] = deque()
        self._step_since_s = 0.0
        self._live: set[str] = set()
        self._drain_asked = False
        self._epoch = 0
        self._closing = False
        self._failure: BaseException | None = None
        self.ended: str | None = None
        self._memory: DeviceMemory | None = None

    # ---- in --------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> None:
        """Submit; `deliver` gets every delta, the last with a finish reason.

        Raises as `Scheduler.add`, and `EngineDeadError` once the loop has ended: nobody would answer.
        """
        if self.ended is not None:
            raise EngineDeadError(self.ended)
        self.scheduler.add(request, self._clock())
        self._live.add(request.request_id)
        self._signal.set()

    def cancel(self, request_id: str) -> None:
        """End a request if it is alive: its row and blocks go at the next step boundary."""
        if self.scheduler.cancel(request_id):
            self._dispatch(self.scheduler.take_undelivered())
            self._signal.set()

    def set_memory_level(self, level: MemoryLevel) -> None:
        """How short the machine is of memory: acted on at the next step boundary."""
        self.scheduler.set_memory_level(level)
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

    @property
    def is_idle(self) -> bool:
        """Whether no request is alive and no step in flight."""
        return not self._live and not self._in_flight

    def step_age_s(self) -> float:
        """Seconds that the oldest step in flight has been running; 0 when there is none."""
        return time.monotonic() - self._step_since_s if self._in_flight else 0.0

    # ---- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `close`. Raises what ends it before that; requests that are alive then get no further delta."""
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
            self.ended = f"the engine failed: {type(error).__name__}: {error}"
            raise
        self.ended = "the engine was stopped"

    def close(self) -> None:
        """Let `run` return."""
        self._closing = True
        self._signal.set()

    def _take_results(self) -> None:
        while self._results:
            plan, result = self._in_flight.popleft(), self._results.popleft()
            self._dispatch(self.scheduler.update(plan, result))
            self._memory = result.memory or self._memory
            self._step_since_s = time.monotonic()
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
        if self._note_rows is not None and (plan.joins or plan.leaves):
            self._note_rows([join.request_id for join in plan.joins], plan.leaves)
        if not self._in_flight:
            self._step_since_s = time.monotonic()
        self._in_flight.append(plan)
        self._thread.submit(plan, self._epoch)
        self._drain_asked = False
        return True

    def _dispatch(self, deltas: Sequence[TokenDelta]) -> None:
        live = [delta for delta in deltas if delta.request_id in self._live]
        for delta in live:
            if delta.finish_reason is not None:
                self._live.remove(delta.request_id)
        if live:
            self._deliver(live)
