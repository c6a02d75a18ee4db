"""`InProcessEngine`: an engine in the caller's process, behind the same client as any other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from mlx_server.core.errors import EngineDeadError, EngineNotReadyError, ModelLoadError, RequestError
from mlx_server.core.messages import EngineInfo, EngineStats, GenerateRequest, TokenDelta
from mlx_server.core.settings import Settings
from mlx_server.core.step import StepResult
from mlx_server.engine.client import LoadProgress
from mlx_server.engine.engine_core import EngineCore
from mlx_server.engine.generation_thread import GenerationThread, StepExecutor
from mlx_server.services.batching.config import SchedulerConfig
from mlx_server.services.batching.scheduler import Scheduler

log = logging.getLogger(__name__)

MakeExecutor = Callable[[Callable[[str, float], None]], tuple[StepExecutor, EngineInfo]]
"""Given a progress callback, load a model; runs on the generation thread."""


class InProcessEngine:
    """Implements `EngineClient`. Created anywhere, used from one event loop.

    make_executor: for tests; by default the model at `model_path` is loaded with MLX.
    """

    def __init__(
        self,
        settings: Settings,
        model_path: Path,
        model_id: str,
        on_progress: LoadProgress | None = None,
        make_executor: MakeExecutor | None = None,
    ) -> None:
        self._settings = settings
        self._model_path = model_path
        self._model_id = model_id
        self._on_progress = on_progress
        self._make_executor = make_executor or self._load_with_mlx
        self._loading: asyncio.Future[EngineInfo] | None = None
        self._info: EngineInfo | None = None
        self._dead: str | None = None
        self._thread: GenerationThread | None = None
        self._core: EngineCore | None = None
        self._run: asyncio.Task[None] | None = None

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

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `EngineClient.generate`."""
        info = self.info
        _check_ids(request, info.vocab_size)
        assert self._core is not None
        stream = self._core.add(request)
        finished = False
        try:
            while not finished:
                delta = await stream.get()
                finished = delta.finish_reason is not None
                yield delta
        finally:
            if not finished:
                self._core.cancel(request.request_id)

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        if self._core is None:
            raise EngineNotReadyError()
        return self._core.stats()

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

    # ---- callbacks of the generation thread, on the event loop --------------------------------------

    def _loaded(self, info: EngineInfo) -> None:
        assert self._thread is not None and self._loading is not None
        if self._dead is not None:
            return
        self._info = info
        self._core = EngineCore(Scheduler(_scheduler_config(self._settings, info)), self._thread)
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
        if not task.cancelled() and task.exception() is not None:
            self._dead = f"the engine failed: {task.exception()}"

    def _load_with_mlx(self, progress: Callable[[str, float], None]) -> tuple[StepExecutor, EngineInfo]:
        from mlx_server.runner.assemble import assemble

        return assemble(self._settings, self._model_path, self._model_id, progress)


def _scheduler_config(settings: Settings, info: EngineInfo) -> SchedulerConfig:
    return SchedulerConfig(
        model_identity=f"{info.model_id}@{info.model_path}",
        num_blocks=info.num_blocks,
        max_model_len=info.max_model_len,
        eos_token_ids=frozenset(info.eos_token_ids),
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_queue=settings.max_queue,
        step_target_s=settings.step_target_ms / 1000,
        prefix_cache=settings.prefix_cache,
    )


def _check_ids(request: GenerateRequest, vocab_size: int) -> None:
    """Raise `RequestError` for a token id the device would read outside the vocabulary."""
    for field, ids in (
        ("prompt", request.prompt_token_ids),
        ("logit_bias", request.sampling.logit_bias),
        ("stop_token_ids", request.sampling.stop_token_ids),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise RequestError(f"{field} has a token id outside 0..{vocab_size - 1}", field=field)
