from collections.abc import Iterator

import pytest

from mlx_server.core.settings import Settings
from mlx_server.daemon.server_thread import ServerThread
from mlx_server.engine.make import make_engine


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    """The whole daemon with the embedded model, on a free loopback port."""
    settings = Settings(model="demo", max_num_seqs=8, kv_memory="32MB")
    with ServerThread(settings, make_engine) as server:
        yield server
