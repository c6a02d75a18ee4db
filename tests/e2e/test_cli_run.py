"""`mlx-serve run` that is interrupted in the middle of its answer."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tokenizers import Tokenizer

from mlx_server.core.settings import Settings
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.daemon.server_thread import ServerThread
from tests.e2e.screen import WAIT_S
from tests.fakes.scripted_engine import ScriptedEngine

MLX_SERVE = [sys.executable, "-c", "from mlx_server.cli.main import main; main()"]


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """Its answers stop in the middle, so that no interruption comes too late."""
    words = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")).encode("one two three").ids
    engine = ScriptedEngine(reply=lambda request: [*words, *words], chunk=len(words), stall_after=1)
    with ServerThread(Settings(model="demo", drain_s=0), lambda *_: engine) as server:
        yield server


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def running(server: ServerThread) -> int:
    return int(httpx2.get(server.url + "/health", trust_env=False).json()["stats"]["running"])


def test_ctrl_c_keeps_the_text_and_ends_the_request(server: ServerThread, env: dict[str, str]) -> None:
    command = [*MLX_SERVE, "run", "--url", server.url, "Count"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as child:
        assert child.stdout is not None and child.stderr is not None
        text = b""
        while not text.endswith(b"three"):
            piece = child.stdout.read1(100)
            assert piece, child.stderr.read().decode()
            text += piece
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=WAIT_S)
    assert (child.returncode, text, out, err) == (130, b"one two three", b"", b"")
    deadline = time.monotonic() + WAIT_S
    while running(server):
        assert time.monotonic() < deadline, "the request went on"
