"""An `InProcessEngine` whose runner is a `TokenPoolRunner`, and what tests do with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mlx_server.core.messages import FinishReason, GenerateRequest, TokenDelta
from mlx_server.core.settings import Settings
from mlx_server.core.step import StepPlan
from mlx_server.engine.inproc import InProcessEngine
from tests.fakes.token_pool_runner import TokenPoolRunner

PATIENCE_S = 20.0
"""No wait in these tests is longer; a test that gets there has failed."""


def engine_with(
    runner: TokenPoolRunner, *, max_model_len: int = 256, max_num_seqs: int = 8, max_queue: int = 1000
) -> InProcessEngine:
    """Not started."""
    info = runner.info(max_model_len=max_model_len, max_num_seqs=max_num_seqs)
    return InProcessEngine(
        Settings(max_queue=max_queue), Path("/nowhere"), "fake", make_executor=lambda progress: (runner, info)
    )


@asynccontextmanager
async def running(runner: TokenPoolRunner, **config: Any) -> AsyncIterator[InProcessEngine]:
    """Started; closed at the end."""
    engine = engine_with(runner, **config)
    try:
        await asyncio.wait_for(engine.start(), PATIENCE_S)
        yield engine
    finally:
        await asyncio.wait_for(engine.close(), PATIENCE_S)


async def collect(engine: InProcessEngine, message: GenerateRequest) -> tuple[list[int], TokenDelta]:
    """Every token, and the last delta."""
    tokens: list[int] = []
    last: TokenDelta | None = None

    async def read() -> None:
        nonlocal last
        async for delta in engine.generate(message):
            assert last is None or last.finish_reason is None, "a delta behind the last one"
            tokens.extend(delta.token_ids)
            last = delta

    await asyncio.wait_for(read(), PATIENCE_S)
    assert last is not None
    assert last.finish_reason is not None
    return tokens, last


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until something holds. Every turn waits for the generation thread, nothing sleeps."""

    async def turn() -> None:
        while not holds():
            await asyncio.to_thread(lambda: None)

    await asyncio.wait_for(turn(), PATIENCE_S)


def reference(runner: TokenPoolRunner, message: GenerateRequest, max_model_len: int = 256) -> list[int]:
    """The text the request has alone."""
    n = min(message.sampling.max_tokens, max_model_len - len(message.prompt_token_ids))
    return runner.model.reference_text(message.prompt_token_ids, message.sampling, n)[0]


class Gate:
    """Holds the runner inside `finish` of the first plan that `when` accepts, until `open`."""

    def __init__(self, when: Callable[[StepPlan], bool]) -> None:
        self._when = when
        self._reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        if not self._reached.is_set() and self._when(plan):
            self._reached.set()
            assert self._open.wait(PATIENCE_S)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, PATIENCE_S)

    def open(self) -> None:
        self._open.set()


COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)
