from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_server.core.settings import Settings
from mlx_server.daemon.server_thread import ServerThread
from mlx_server.engine.client import EngineClient, LoadProgress


def make_engine(settings: Settings, folder: Path, on_progress: LoadProgress) -> EngineClient:
    from mlx_server.engine.inproc import InProcessEngine

    return InProcessEngine(settings, folder, settings.model, on_progress)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    """The whole daemon with the embedded model, on a free loopback port."""
    settings = Settings(model="demo", max_num_seqs=8, kv_memory="32MB")
    with ServerThread(settings, make_engine) as server:
        yield server
