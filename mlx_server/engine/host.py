"""`EngineHost`: one loaded model, with its generation thread and its scheduling loop, in this process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from mlx_server.core.errors import EngineDeadError, EngineNotReadyError, ModelLoadError, RequestError
from mlx_server.core.messages import EngineInfo, EngineStats, GenerateRequest, MemoryLevel
from mlx_server.core.settings import Settings
from mlx_server.core.step import StepResult
from mlx_server.engine.client import LoadProgress
from mlx_server.engine.engine_core import Deliver, EngineCore, NoteRows
from mlx_server.engine.generation_thread import GenerationThread, StepExecutor
from mlx_server.services.batching.config import SchedulerConfig
from mlx_server.services.batching.scheduler import Scheduler

log = logging.getLogger(__name__)

MakeExecutor = Callable[[Callable[[str, float], None]], tuple[StepExecutor, EngineInfo]]
"""Given a progress callback, load a model; runs on the generation thread."""


class EngineHost:
    """Created anywhere, used from one event loop.

    deliver: gets every delta. on_ended: gets the reason when the engine ends without having been asked to.
    make_executor: loads the model; runs on the generation thread.
    """

    def __init__(
        self,
        settings: Settings,
        make_executor: MakeExecutor,
        deliver: Deliver,
        on_progress: LoadProgress | None = None,
        on_ended: Callable[[str], None] | None = None,
        note_rows: NoteRows | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._make_executor = make_executor
        self._deliver = deliver
        self._on_progress = on_progress
        self._on_ended = on_ended
        self._note_rows = note_rows
        self._clock = clock
        self._loading: asyncio.Future[EngineInfo] | None = None
        self._info: EngineInfo | None = None
        self._dead: str | None = None
        self._thread: GenerationThread | None = None
        self._run: asyncio.Task[None] | None = None
        self._core: EngineCore | None = None

    async def start(self) -> EngineInfo:
        """See `EngineClient.start`."""
        if self._dead is not None and (self._loading is None or self._info is not None):
            raise EngineDeadError(self._dead)
        if self._loading is None:
            loop = asyncio.get_running_loop()
            self._loading = loop.create_future()

            def progress(stage: str, fraction: float) -> None:
                if self._on_progress is not None:
                    loop.call_soon_threadsafe(self._on_progress, stage, fraction)

            self._thread = GenerationThread(
                lambda: self._make_executor(progress), loop, self._loaded, self._thread_failed, self._take_result
            )
            self._thread.start()
        return await asyncio.shield(self._loading)

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`."""
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        if self._info is None:
            raise EngineNotReadyError()
        return self._info

    @property
    def core(self) -> EngineCore:
        """The scheduling loop. Raises `EngineNotReadyError` before the model is loaded."""
        if self._core is None:
            raise EngineNotReadyError()
        return self._core

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request. Raises as `EngineClient.generate`."""
        _check_ids(request, self.info.vocab_size)
        self.core.add(request)

    def cancel(self, request_id: str) -> None:
        """End a request if it is alive."""
        if self._core is not None:
            self._core.cancel(request_id)

    def set_memory_level(self, level: MemoryLevel) -> None:
        """See `EngineClient.set_memory_level`."""
        if self._core is not None:
            self._core.set_memory_level(level)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do: no load, no request, no step."""
        if self._dead is not None:
            return True
        return self._core is not None and self._core.is_idle

    def step_age_s(self) -> float:
        """Seconds that the oldest step in flight has been running; 0 when there is none."""
        return self._core.step_age_s() if self._core is not None else 0.0

    def stats(self) -> EngineStats:
        """A snapshot. Raises `EngineNotReadyError`."""
        return self.core.stats()

    async def close(self) -> None:
        """See `EngineClient.close`."""
        if self._dead is None:
            self._dead = "the engine was stopped"
        if self._core is not None:
            self._core.close()
        if self._run is not None:
            await asyncio.wait([self._run])
        if self._thread is not None:
            self._thread.stop()
            await asyncio.to_thread(self._thread.join)
        if self._loading is not None and not self._loading.done():
            self._loading.set_exception(EngineDeadError(self._dead))
            self._loading.exception()  # there may be nobody who waits for it

    # ---- callbacks of the generation thread, on the event loop --------------------------------------

    def _loaded(self, info: EngineInfo) -> None:
        assert self._thread is not None and self._loading is not None
        if self._dead is not None:
            return
        self._info = info
        scheduler = Scheduler(_scheduler_config(self._settings, info))
        self._core = EngineCore(scheduler, self._thread, self._deliver, self._note_rows, self._clock)
        self._run = asyncio.create_task(self._core.run(), name="mlx-schedule")
        self._run.add_done_callback(self._run_ended)
        self._loading.set_result(info)

    def _thread_failed(self, error: BaseException) -> None:
        if self._core is not None:
            self._core.fail(error)
        else:
            self._load_failed(error)

    def _load_failed(self, error: BaseException) -> None:
        assert self._loading is not None
        if not isinstance(error, ModelLoadError):
            log.error("loading failed unexpectedly", exc_info=error)
            error = ModelLoadError(f"{type(error).__name__}: {error}")
        self._dead = f"the model could not be loaded: {error}"
        if not self._loading.done():
            self._loading.set_exception(error)

    def _take_result(self, result: StepResult) -> None:
        if self._core is not None:
            self._core.take_result(result)

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        self._dead = self.core.ended or f"the engine failed: {task.exception()}"
        if self._on_ended is not None:
            self._on_ended(self._dead)


def load_with_mlx(settings: Settings, model_path: Path, model_id: str, is_proven: bool = False) -> MakeExecutor:
    """Load the folder with MLX. is_proven: its parity has been probed before, by the same daemon."""

    def make(progress: Callable[[str, float], None]) -> tuple[StepExecutor, EngineInfo]:
        from mlx_server.runner.assemble import assemble

        return assemble(settings, model_path, model_id, progress, is_proven)

    return make


def _scheduler_config(settings: Settings, info: EngineInfo) -> SchedulerConfig:
    return SchedulerConfig(
        model_identity=f"{info.model_id}@{info.model_path}",
        num_blocks=info.num_blocks,
        initial_blocks=info.initial_blocks,
        max_model_len=info.max_model_len,
        eos_token_ids=frozenset(info.eos_token_ids),
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_queue=settings.max_queue,
        max_queue_per_tenant=settings.max_queue_per_key,
        step_target_s=settings.step_target_ms / 1000,
        prefix_cache=settings.prefix_cache,
    )


def _check_ids(request: GenerateRequest, vocab_size: int) -> None:
    """Raise `RequestError` for a token id the device would read outside the vocabulary."""
    for field, ids in (
        ("prompt", request.prompt_token_ids),
        ("generated_token_ids", request.generated_token_ids),
        ("logit_bias", request.sampling.logit_bias),
        ("stop_token_ids", request.sampling.stop_token_ids),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise RequestError(f"{field} has a token id outside 0..{vocab_size - 1}", field=field)
