"""The engine's process with faults on order. The daemon under test starts it in the place of the usual one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mlx_server.core.messages import EngineInfo
from mlx_server.core.settings import Settings
from mlx_server.engine.generation_thread import StepExecutor
from mlx_server.engine.host import MakeExecutor, load_with_mlx
from mlx_server.engine.process_main import main
from tests.chaos.faulty_executor import FaultyClock, FaultyExecutor
from tests.chaos.mailbox import Mailbox


def run() -> None:
    """Take the command line of the usual engine process."""
    clock = FaultyClock()
    mailbox = Mailbox.from_environment()

    def load(settings: Settings, folder: Path, model_id: str, is_proven: bool) -> MakeExecutor:
        sound = load_with_mlx(settings, folder, model_id, is_proven)

        def make(progress: Callable[[str, float], None]) -> tuple[StepExecutor, EngineInfo]:
            executor, info = sound(progress)
            return FaultyExecutor(executor, mailbox, clock), info

        return make

    main(load=load, clock=clock)


if __name__ == "__main__":
    run()
