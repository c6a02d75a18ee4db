"""An engine's process around a `TokenPoolRunner`: starts in a moment, and does what certain prompts ask for.

`python -m tests.fakes.token_pool_engine --fd N --parent P`, started by a `SupervisedEngine` as its `command`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.messages import EngineInfo
from mlx_server.core.settings import Settings
from mlx_server.core.step import StepPlan
from mlx_server.engine.generation_thread import StepExecutor
from mlx_server.engine.host import MakeExecutor
from mlx_server.engine.process_main import main
from tests.fakes.token_pool_runner import FakeModel, TokenPoolRunner

COMMAND = (sys.executable, "-m", "tests.fakes.token_pool_engine")

KILLS = 31_001
"""A prompt with this token aborts the process in the first step that computes some of it."""

KILLS_LATER = 31_002
"""A prompt with this token aborts the process when the 6th token is to be generated."""

HANGS_ONCE = 31_003
"""A step with this token never ends, but for a process that finds the file `hung` in the model's folder."""

STEP_S = 0.004

NUM_BLOCKS = 256
MAX_MODEL_LEN = 1024
MODEL = FakeModel(vocab_size=31_000)
"""It never says one of the tokens above."""


class TroubledRunner(TokenPoolRunner):
    """Looks for the tokens above before it launches a step, and takes its time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(NUM_BLOCKS, MODEL, before_finish=lambda plan: time.sleep(STEP_S))
        self._folder = folder
        self._doomed: set[str] = set()

    def launch(self, plan: StepPlan) -> object:  # type: ignore[override]
        self._doomed |= {join.request_id for join in plan.joins if KILLS_LATER in join.history}
        for segment in plan.segments:
            tokens = segment.token_ids or ()
            if KILLS in tokens or (segment.request_id in self._doomed and segment.num_generated == 5):
                os.abort()
            if HANGS_ONCE in tokens and not (self._folder / "hung").exists():
                (self._folder / "hung").touch()
                time.sleep(3600)
        return super().launch(plan)


def load(settings: Settings, folder: Path, model_id: str, is_proven: bool) -> MakeExecutor:
    """A folder with a file `broken` cannot be loaded."""

    def make(progress: Callable[[str, float], None]) -> tuple[StepExecutor, EngineInfo]:
        progress("pretending", 0.5)
        if (folder / "broken").exists():
            raise ModelLoadError("the folder is broken")
        runner = TroubledRunner(folder)
        info = runner.info(max_model_len=MAX_MODEL_LEN, max_num_seqs=settings.max_num_seqs)
        return runner, replace(info, vocab_size=32_000)

    return make


if __name__ == "__main__":
    main(load=load)
