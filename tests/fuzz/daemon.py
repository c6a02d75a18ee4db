"""A real `mlx-serve serve` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_RUN = "from mlx_server.cli.main import main; main()"
_ROOT = Path(__file__).resolve().parents[2]
_END_S = 30
FLAGS = {
    "MLX_SERVE_PORT": "0",
    "MLX_SERVE_KV_MEMORY": "16MB",
    "MLX_SERVE_MAX_MODEL_LEN": "256",
    "MLX_SERVE_DEFAULT_MAX_TOKENS": "4",
    "MLX_SERVE_LOG_LEVEL": "warning",
}
"""Short answers: a run is about the endpoint, and the context bounds what no cap has bounded."""


@dataclass
class Daemon:
    """A running daemon. `log`: what it has written to stderr."""

    process: subprocess.Popen[str]
    log: IO[str]
    url: str = ""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def written(self) -> str:
        self.log.seek(0)
        return self.log.read()


@contextmanager
def running() -> Iterator[Daemon]:
    """A daemon that answers; ended by its own id on leaving."""
    env = {**os.environ, **FLAGS, "PYTHONPATH": str(_ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        env |= {"HOME": folder, "XDG_CONFIG_HOME": folder}  # not the API keys of whoever runs this
        command = [sys.executable, "-c", _RUN, "serve"]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            daemon = Daemon(process, log)
            try:
                daemon.url = _wait_for_url(daemon)
                yield daemon
                process.terminate()
                process.wait(_END_S)
            finally:
                process.kill()


def _wait_for_url(daemon: Daemon) -> str:
    assert daemon.process.stdout is not None
    for line in daemon.process.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            return found[0]
    raise RuntimeError(f"the daemon ended before it was ready:\n{daemon.written()}")
