"""A `StepExecutor` in front of the real model runner that fails on order, or when a poisoned request comes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from mlx_server.core.step import StepPlan, StepResult
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.engine.generation_thread import StepExecutor
from tests.chaos.catalogue import MARKERS, POISON_AFTER
from tests.chaos.mailbox import Mailbox

MALLOC = "[malloc] Unable to allocate 17179869184 bytes."
"""In the words of MLX's own allocator."""


class FaultyClock:
    """The system's monotonic clock, until it is told to jump."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._offset_s

    def jump(self, by_s: float) -> None:
        self._offset_s += by_s


@dataclass(slots=True)
class _Launched:
    """A step of the runner. fails: its result is lost."""

    step: Any
    fails: bool = False


class FaultyExecutor:
    """Orders come from the mailbox, one a step. Steps without tokens are left alone.

    A request is poisoned by a marker in its prompt: each step that computes it raises, or ends the process; with
    the marker twice, only once it has generated `POISON_AFTER` tokens.
    """

    def __init__(self, runner: StepExecutor, mailbox: Mailbox, clock: FaultyClock) -> None:
        self._runner = runner
        self._mailbox = mailbox
        self._clock = clock
        self._poison: dict[str, tuple[str, int]] = {}
        self._markers = _marker_ids()
        self.overlaps = runner.overlaps

    def launch(self, plan: StepPlan) -> _Launched:
        for join in plan.joins:
            prompt = _spaced(join.history[: join.num_prompt_tokens])
            for use, marker in self._markers.items():
                if times := prompt.count(marker):
                    self._poison[join.request_id] = (use, POISON_AFTER if times > 1 else 0)
        for request_id in plan.leaves:
            self._poison.pop(request_id, None)
        order = self._mailbox.take() if plan.segments else None
        self._poisoned(plan)
        if order is not None and order["kind"] == "raise_finish":
            return _Launched(self._runner.launch(plan), fails=True)
        if order is not None:
            _ORDERS[order["kind"]](self._clock, order)
        return _Launched(self._runner.launch(plan))

    def finish(self, launched: _Launched) -> StepResult:
        result = self._runner.finish(launched.step)
        if launched.fails:
            raise RuntimeError("this step's result was told to be lost")
        return result

    def reset(self) -> None:
        self._poison.clear()
        self._runner.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def _poisoned(self, plan: StepPlan) -> None:
        for segment in plan.segments:
            use, after = self._poison.get(segment.request_id, ("", 0))
            if use and segment.num_generated >= after:
                if use == "poison_abort":
                    os.abort()
                raise ValueError(f"the request {segment.request_id} is poisoned")


def _raise(clock: FaultyClock, order: dict[str, Any]) -> None:
    raise RuntimeError("this step was told to fail")


def _refuse_memory(clock: FaultyClock, order: dict[str, Any]) -> None:
    raise RuntimeError(MALLOC)


def _hang(clock: FaultyClock, order: dict[str, Any]) -> None:
    threading.Event().wait()


def _jump(clock: FaultyClock, order: dict[str, Any]) -> None:
    clock.jump(order["by_s"])


_ORDERS: dict[str, Callable[[FaultyClock, dict[str, Any]], None]] = {
    "raise_launch": _raise,
    "malloc": _refuse_memory,
    "hang": _hang,
    "engine_clock": _jump,
}


def _spaced(token_ids: tuple[int, ...]) -> str:
    return "".join(f" {token_id} " for token_id in token_ids)


def _marker_ids() -> dict[str, str]:
    tokenizer = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))
    return {use: _spaced(tuple(tokenizer.encode(marker).ids)) for use, marker in MARKERS.items()}
