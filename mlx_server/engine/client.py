"""`EngineClient`: the only way in to an engine, wherever it runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from mlx_server.core.messages import EngineInfo, EngineStats, GenerateRequest, MemoryLevel, TokenDelta

LoadProgress = Callable[[str, float], None]
"""Called with (stage, fraction in [0, 1]) while a model loads, on the event loop's thread."""


class EngineClient(Protocol):
    """One engine with one model. Callers may not assume that it lives in their process."""

    async def start(self) -> EngineInfo:
        """Load the model and return what it can do. Raises `ModelLoadError` with the reason.

        May be awaited by several tasks; all of them get the same outcome.
        """
        ...

    @property
    def info(self) -> EngineInfo:
        """Raises `EngineNotReadyError` while loading, `EngineDeadError` after a failed load or a stop."""
        ...

    @property
    def is_restarting(self) -> bool:
        """Whether the engine is being replaced after a failure: requests are accepted, and wait for it."""
        ...

    @property
    def pid(self) -> int:
        """Of the process of its own that holds the model; 0 while there is none."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """Yield deltas until one carries a `finish_reason`. The request is submitted at the first `anext`.

        Closing the iterator early (`aclose`, cancellation) aborts the request: its row and blocks are
        free at the next step boundary. Raises, before anything is generated: `QueueFullError`,
        `RequestError` (prompt too long or empty, token id out of range), `EngineNotReadyError`,
        `EngineDeadError`. A failure in the middle is the last delta, with `FinishReason.ERROR`.
        """
        ...

    async def set_memory_level(self, level: MemoryLevel) -> None:
        """Tell it how short the machine is of memory. It acts at its next step boundary, and no text changes."""
        ...

    async def stats(self) -> EngineStats:
        """A snapshot of the counters."""
        ...

    async def close(self) -> None:
        """End every request (`FinishReason.ABORT`), free the model, join the thread. Idempotent."""
        ...
