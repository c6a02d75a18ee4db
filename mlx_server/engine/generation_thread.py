"""The one thread that owns every MLX object of an engine.

MLX streams, random state and compile caches are thread-local, so the model is loaded, run and dropped here, and
nowhere else. Plans come in through a queue on which the thread blocks (idle means no wake-ups); results go out
through `call_soon_threadsafe`. One step may be launched while the one before it still runs.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from mlx_server.core.errors import RowError
from mlx_server.core.messages import EngineInfo
from mlx_server.core.step import StepPlan, StepResult

log = logging.getLogger(__name__)


class StepExecutor(Protocol):
    """What the thread drives: a `ModelRunner`, or in tests a fake.

    overlaps: whether `launch` returns while the device works. On a GPU it does, so the next step is launched
    before this one is finished. MLX's CPU backend blocks in `launch` until all but the last few operations are
    done, so there a step is finished at once and its tokens leave a step earlier.
    """

    overlaps: bool

    def launch(self, plan: StepPlan) -> Any:
        """Start a step; what it returns is handed to `finish`."""
        ...

    def finish(self, step: Any) -> StepResult:
        """Wait for a launched step."""
        ...

    def reset(self) -> None:
        """Forget every row, after a failed step."""
        ...

    def close(self) -> None:
        """Last call on the thread: give the device up."""
        ...


class _Drain:
    """Nothing more can be planned until the step in flight is finished."""


class _Stop:
    """Leave."""


class GenerationThread:
    """Executes plans in the order in which they are submitted.

    make_executor: runs on the thread. on_failed: gets whatever ends the thread before `stop` does: a load
        that failed, or an executor that cannot even be reset. All callbacks run on the event loop.
    """

    def __init__(
        self,
        make_executor: Callable[[], tuple[StepExecutor, EngineInfo]],
        loop: asyncio.AbstractEventLoop,
        on_loaded: Callable[[EngineInfo], None],
        on_failed: Callable[[BaseException], None],
        on_result: Callable[[StepResult], None],
    ) -> None:
        self._make_executor = make_executor
        self._loop = loop
        self._on_loaded = on_loaded
        self._on_failed = on_failed
        self._on_result = on_result
        self._inbox: queue.SimpleQueue[tuple[StepPlan, int] | _Drain | _Stop] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mlx-generate", daemon=True)
        self._pending: tuple[StepPlan, Any] | None = None
        self._epoch = 0  # of the newest plan, and so of the pending one
        self._failed_epoch = -1

    def start(self) -> None:
        """Begin loading."""
        self._thread.start()

    def submit(self, plan: StepPlan, epoch: int) -> None:
        """Queue a plan. After a step of an epoch has failed, its later plans are skipped, not tried."""
        self._inbox.put((plan, epoch))

    def drain(self) -> None:
        """Finish the step in flight now instead of waiting for the next plan."""
        self._inbox.put(_Drain())

    def stop(self) -> None:
        """Leave after what is queued; `join` waits for it."""
        self._inbox.put(_Stop())

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end; False when it has not. A thread never started counts as ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            executor, info = self._make_executor()
        except BaseException as error:  # noqa: BLE001 - whatever a load can raise must reach those who wait for it
            self._deliver(self._on_failed, error)
            return
        self._deliver(self._on_loaded, info)
        try:
            while not isinstance(message := self._inbox.get(), _Stop):
                if isinstance(message, _Drain):
                    self._finish(executor)
                else:
                    self._execute(executor, *message)
                del message
            self._finish(executor)
        except BaseException as error:  # the thread ends here; nobody may wait for its results for ever
            log.error("the generation thread has failed", exc_info=error)
            self._deliver(self._on_failed, error)
        finally:
            self._pending = None
            executor.close()

    def _execute(self, executor: StepExecutor, plan: StepPlan, epoch: int) -> None:
        self._epoch = epoch
        if plan.commits:
            self._finish(executor)  # a commit drains the device anyway: let the tokens out first
        if epoch == self._failed_epoch:
            self._skip(plan)
            return
        try:
            launched = executor.launch(plan)
        except Exception as error:  # noqa: BLE001 - it fails its requests, never the thread
            self._finish(executor)
            if epoch == self._failed_epoch:
                self._skip(plan)  # the step before it failed, and may be why
            else:
                self._fail(executor, plan, error)
            return
        before, self._pending = self._pending, (plan, launched)
        if before is not None:
            self._finish_one(executor, *before)
        if not executor.overlaps:
            self._finish(executor)

    def _finish(self, executor: StepExecutor) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._finish_one(executor, *pending)

    def _finish_one(self, executor: StepExecutor, plan: StepPlan, launched: Any) -> None:
        try:
            result = executor.finish(launched)
        except Exception as error:  # noqa: BLE001 - device errors surface here; the thread lives
            self._fail(executor, plan, error)
            return
        self._deliver(self._on_result, result)

    def _fail(self, executor: StepExecutor, plan: StepPlan, error: Exception) -> None:
        """Every row is gone: the plans made before the engine hears of it are skipped, also the launched one."""
        log.error("step %d failed", plan.step_id, exc_info=error)
        self._failed_epoch = self._epoch
        executor.reset()
        culprits = (error.request_id,) if isinstance(error, RowError) else ()
        why = f"{type(error).__name__}: {error}"
        self._deliver(self._on_result, StepResult(plan.step_id, error=why, culprits=culprits))
        launched, self._pending = self._pending, None
        if launched is not None:
            self._skip(launched[0])

    def _skip(self, plan: StepPlan) -> None:
        self._deliver(self._on_result, StepResult(plan.step_id, skipped=True))

    def _deliver(self, callback: Callable[[Any], None], value: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            log.debug("the event loop is closed; a result has nobody to go to")
