"""Bringing the model up behind a port that listens already."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from mlx_server.api.serving import LoadedModel, ServingState
from mlx_server.chat.defaults import load_defaults
from mlx_server.chat.tokenizer import ChatTokenizer, load_tokenizer
from mlx_server.core.settings import Settings
from mlx_server.daemon.model_source import resolve_model
from mlx_server.engine.client import EngineClient, LoadProgress

logger = logging.getLogger(__name__)

T = TypeVar("T")
MakeEngine = Callable[[Settings, Path, LoadProgress], EngineClient]


class ModelLoader:
    """Loads once, and closes what it loaded. Belongs to the daemon's event loop."""

    def __init__(self, serving: ServingState, make_engine: MakeEngine) -> None:
        self._serving = serving
        self._make_engine = make_engine
        self._engine: EngineClient | None = None
        self._tokenizer: ChatTokenizer | None = None

    async def load(self) -> None:
        """Fill in `serving.model`. Raises `ModelLoadError`."""
        serving = self._serving
        serving.stage = "finding the model"
        folder = await in_daemon_thread(lambda: resolve_model(serving.settings.model))
        serving.stage = "loading the model"
        self._engine = self._make_engine(serving.settings, folder, self._note_progress)
        async with _together() as tasks:
            # In two processes, side by side.
            loading = tasks.create_task(self._engine.start())
            self._tokenizer = await in_daemon_thread(lambda: load_tokenizer(folder))
        info = loading.result()
        serving.model = LoadedModel(self._engine, info, self._tokenizer, load_defaults(folder))
        logger.info(
            "%s is ready after %.1f s: %s, %d tokens of context", serving.name, info.load_s, info.model_type,
            info.max_model_len,
        )  # fmt: skip

    def _note_progress(self, stage: str, fraction: float) -> None:
        self._serving.stage, self._serving.progress = stage, fraction

    async def close(self) -> None:
        """End every request and free the model. Idempotent."""
        if self._engine is not None:
            await self._engine.close()
        if self._tokenizer is not None:
            self._tokenizer.close()


@contextlib.asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first error as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread that does not outlive the process, as an executor's thread would."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:  # noqa: BLE001 - the thread ends here; the awaiting task gets it
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="mlx-load", daemon=True).start()
    return await future
