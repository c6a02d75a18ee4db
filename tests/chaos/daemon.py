"""The daemon under test: the real one in a process of its own, but for what starts its engine and tells the time.

python -m tests.chaos.daemon SETTINGS_AS_JSON

It prints its URL once the model answers. SIGUSR1 makes the next jump of its wall clock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

from mlx_server.core.messages import EngineInfo
from mlx_server.core.settings import Settings
from mlx_server.daemon.server import serve
from mlx_server.engine.client import EngineClient, LoadProgress
from mlx_server.engine.generation_thread import StepExecutor
from mlx_server.engine.inproc import InProcessEngine
from mlx_server.telemetry.logs import setup_logging
from tests.chaos.mailbox import FOLDER_VARIABLE, Mailbox

JUMPS_S = (3600.0, -3600.0, 0.0)
"""Offsets of the wall clock, one after the other."""


def make_engine(settings: Settings, folder: Path, on_progress: LoadProgress) -> EngineClient:
    """Faulty where a mailbox is given, else as it is."""
    if FOLDER_VARIABLE not in os.environ:
        return InProcessEngine(settings, folder, settings.model, on_progress)
    if settings.engine == "inprocess":
        return _faulty_in_process(settings, folder, on_progress)
    from mlx_server.engine.supervisor import SupervisedEngine

    command = (sys.executable, "-m", "tests.chaos.faulty_engine")
    return SupervisedEngine(settings, folder, settings.model, on_progress, command=command)


def _faulty_in_process(settings: Settings, folder: Path, on_progress: LoadProgress) -> EngineClient:
    from tests.chaos.faulty_executor import FaultyClock, FaultyExecutor

    def make_executor(progress: Callable[[str, float], None]) -> tuple[StepExecutor, EngineInfo]:
        from mlx_server.runner.assemble import assemble

        runner, info = assemble(settings, folder, settings.model, progress)
        return FaultyExecutor(runner, Mailbox.from_environment(), FaultyClock()), info

    return InProcessEngine(settings, folder, settings.model, on_progress, make_executor=make_executor)


async def run(settings: Settings) -> None:
    """Serve until SIGTERM."""
    true_time, jumps = time.time, cycle(JUMPS_S)

    def jump() -> None:
        offset_s = next(jumps)
        time.time = lambda: true_time() + offset_s

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, jump)
    await serve(settings, make_engine, lambda url: print(url, flush=True))  # noqa: T201 - what the harness waits for


if __name__ == "__main__":
    given = Settings.model_validate_json(sys.argv[1])
    setup_logging(given.log_level)
    asyncio.run(run(given))
