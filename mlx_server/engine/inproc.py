"""`InProcessEngine`: an engine in the caller's process, for tests and debugging."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

from msgspec.structs import replace

from mlx_server.core.messages import EngineInfo, EngineStats, FinishReason, GenerateRequest, MemoryLevel, TokenDelta
from mlx_server.core.settings import Settings
from mlx_server.engine.client import LoadProgress
from mlx_server.engine.host import EngineHost, MakeExecutor, load_with_mlx
from mlx_server.engine.streams import Streams, TokenStream


class InProcessEngine:
    """Implements `EngineClient`. Created anywhere, used from one event loop. When it dies its requests die with it.

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
        make_executor = make_executor or load_with_mlx(settings, model_path, model_id)
        self._streams = Streams(self._submit, self._cancel)
        self.host = EngineHost(settings, make_executor, self._streams.deliver, on_progress, self._ended)

    async def start(self) -> EngineInfo:
        """See `EngineClient.start`."""
        return await self.host.start()

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`."""
        return self.host.info

    @property
    def is_restarting(self) -> bool:
        """See `EngineClient.is_restarting`."""
        return False

    @property
    def pid(self) -> int:
        """See `EngineClient.pid`."""
        return 0

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `EngineClient.generate`."""
        return self._streams.generate(request)

    async def set_memory_level(self, level: MemoryLevel) -> None:
        """See `EngineClient.set_memory_level`."""
        self.host.set_memory_level(level)

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        return replace(self.host.stats(), streams=len(self._streams), paused_streams=self._streams.num_paused)

    async def close(self) -> None:
        """See `EngineClient.close`."""
        self._streams.end_all(FinishReason.ABORT, "the engine was stopped")
        await self.host.close()

    def _ended(self, reason: str) -> None:
        self._streams.end_all(FinishReason.ERROR, reason)

    def _submit(self, stream: TokenStream) -> None:
        self.host.submit(self._streams.attempt(stream))

    def _cancel(self, attempt: str) -> None:
        self.host.cancel(attempt)
