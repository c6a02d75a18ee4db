"""What the endpoints serve: the one model, or why there is none (yet, or any more)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from mlx_server.api.body import BodyReader
from mlx_server.api.errors import RefusedError, ShuttingDownError
from mlx_server.api.live.observed import Observed
from mlx_server.chat.defaults import SamplingDefaults
from mlx_server.chat.tokenizer import ChatTokenizer
from mlx_server.core.errors import EngineDeadError, EngineNotReadyError
from mlx_server.core.messages import EngineInfo, MemoryLevel
from mlx_server.core.settings import Settings
from mlx_server.engine.client import EngineClient
from mlx_server.services.memory.reading import MemoryReading
from mlx_server.telemetry.metrics import Metrics

T = TypeVar("T")

ANY_MODEL = "default"
"""A `model` that means: whatever is served."""


@dataclass(slots=True, frozen=True)
class LoadedModel:
    """A model that answers. info: as it was when the engine became ready."""

    engine: EngineClient
    info: EngineInfo
    tokenizer: ChatTokenizer
    defaults: SamplingDefaults


@dataclass(slots=True)
class ServingState:
    """Owned by the daemon's event loop; the endpoints only read it."""

    settings: Settings
    created_s: int = field(default_factory=lambda: int(time.time()))
    started_s: float = field(default_factory=time.monotonic)
    model: LoadedModel | None = None
    draining: bool = False  # the daemon ends: what runs may finish, nothing begins
    engine_died: asyncio.Event = field(default_factory=asyncio.Event)  # set by the first request that finds it dead
    stage: str = "starting"  # of the load, for people
    progress: float = 0.0  # of the stage, from 0 to 1
    observed: Observed = field(default_factory=Observed)
    answering: int = 0  # answers that are being generated
    memory: MemoryReading | None = None  # the newest
    memory_level: MemoryLevel = MemoryLevel.NORMAL
    look_at_memory: asyncio.Event = field(default_factory=asyncio.Event)  # something has happened that may change it
    metrics: Metrics = field(init=False)
    bodies: BodyReader = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.name)
        self.bodies = BodyReader(self.settings.max_body_bytes, self.settings.client_timeout_s)

    @property
    def name(self) -> str:
        """Under which clients see the model."""
        return self.settings.served_model_name or self.settings.model

    def loaded(self) -> LoadedModel:
        """The model, which may be restarting. Raises `ShuttingDownError`, `EngineNotReadyError`, `EngineDeadError`."""
        if self.draining:
            raise ShuttingDownError
        if self.model is None:
            raise EngineNotReadyError
        try:
            _ = self.model.engine.info
        except EngineDeadError:
            self.engine_died.set()
            raise
        return self.model

    @asynccontextmanager
    async def reading(self, deltas: AsyncGenerator[T, None]) -> AsyncIterator[AsyncGenerator[T, None]]:
        """Closes `deltas` in the end. When their engine ends with the daemon, they say so: `ShuttingDownError`."""
        if self.answering == 0:
            self.look_at_memory.set()
        self.answering += 1
        try:
            async with aclosing(deltas):
                yield deltas
        except EngineDeadError:
            self.loaded()  # raises when there is more to say
            raise
        finally:
            self.answering -= 1

    def check_name(self, model: str | None) -> None:
        """Raise a 404 unless `model` is absent, the served name, the underlying id, or 'default'."""
        if model is None or model in self.names():
            return
        message = f"the model {model[:200]!r} does not exist here; served is {self.name!r}"
        raise RefusedError(404, message, "model", "model_not_found")

    def names(self) -> frozenset[str]:
        """Every name that is accepted."""
        own = {self.name, self.settings.model, ANY_MODEL}
        return frozenset(own if self.model is None else own | {self.model.info.model_id})


def serving_of(request: Request) -> ServingState:
    """The state that `create_app` put on the application."""
    state = request.app.state.serving
    if not isinstance(state, ServingState):
        raise TypeError("the application has no ServingState")
    return state
