"""A real runner whose steps a test can hold, count and fail. No test has to guess how fast the machine is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_server.core.messages import EngineInfo
from mlx_server.core.settings import Settings
from mlx_server.core.step import StepPlan, StepResult
from mlx_server.engine.client import EngineClient, LoadProgress
from mlx_server.engine.inproc import InProcessEngine

WAIT_S = 60


class Gate:
    """Shared by the test and the generation thread.

    Only steps that compute tokens count, and from being told to on only those from the next admission of a request:
    the last step of an earlier answer, whose token nobody wants any more, may still be on its way.
    """

    def __init__(self) -> None:
        self.launched = 0
        self.held = threading.Event()
        self._admitted = False
        self._failures = 0
        self._hold_after: int | None = None
        self._open = threading.Event()

    def hold_after(self, steps: int) -> None:
        """Let that many steps pass, and stop before the next one; `held` tells that it is so."""
        self._admitted = False
        self._open.clear()
        self.held.clear()
        self._hold_after = steps

    def fail_next(self, steps: int = 1) -> None:
        """Let the next step fail, or the one that is being held; and those after it, `steps` in all."""
        self._admitted = self.held.is_set() and not self._open.is_set()
        self._failures = steps

    def open(self) -> None:
        self._hold_after = None
        self._open.set()

    def wait_held(self) -> None:
        assert self.held.wait(WAIT_S), "no step came to the gate"

    def enter(self, plan: StepPlan) -> None:
        self._admitted = self._admitted or bool(plan.joins)
        if self._admitted and self._hold_after is not None:
            if self._hold_after == 0:
                self.held.set()
                assert self._open.wait(WAIT_S), "the test left the gate shut"
            else:
                self._hold_after -= 1
        self.launched += 1
        if self._admitted and self._failures:
            self._failures -= 1
            raise RuntimeError("this step was told to fail")


class GatedExecutor:
    """A `StepExecutor` in front of the `ModelRunner`."""

    def __init__(self, runner: Any, gate: Gate) -> None:
        self._runner = runner
        self._gate = gate
        self.overlaps = runner.overlaps

    def launch(self, plan: StepPlan) -> Any:
        if plan.segments:
            self._gate.enter(plan)
        return self._runner.launch(plan)

    def finish(self, step: Any) -> StepResult:
        result: StepResult = self._runner.finish(step)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def gated_engine(gate: Gate) -> Callable[[Settings, Path, LoadProgress], EngineClient]:
    """A `MakeEngine` for `ServerThread`."""

    def make_engine(settings: Settings, folder: Path, on_progress: LoadProgress) -> EngineClient:
        def make_executor(progress: Callable[[str, float], None]) -> tuple[GatedExecutor, EngineInfo]:
            from mlx_server.runner.assemble import assemble

            runner, info = assemble(settings, folder, settings.model, progress)
            return GatedExecutor(runner, gate), info

        return InProcessEngine(settings, folder, settings.model, make_executor=make_executor)

    return make_engine
