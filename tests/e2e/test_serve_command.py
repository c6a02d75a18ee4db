"""`mlx-serve serve` as a process: started, asked, ended."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

MLX_SERVE = [sys.executable, "-c", "from mlx_server.cli.main import main; main()"]
WAIT_S = 60


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [*MLX_SERVE, "serve", "--port", "0", "--kv-memory", "32MB"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_serve_prints_its_address_answers_and_ends_on_sigterm(daemon: subprocess.Popen[str]) -> None:
    assert daemon.stdout is not None
    printed = []
    for line in daemon.stdout:  # ends at end of file, should the daemon die
        printed.append(line)
        if line.startswith("curl "):
            break
    text = "".join(printed)
    found = re.search(r"base URL +(http://127\.0\.0\.1:\d+)/v1", text)
    assert found, text
    assert re.search(r"KV pool +[\d,]+ blocks, [\d.]+ MB, [\d,]+ tokens", text)

    _, url, _, header, _, body = shlex.split(printed[-1])
    assert url == found[1] + "/v1/chat/completions"
    name, _, value = header.partition(": ")
    answer = httpx2.post(url, content=body, headers={name: value}, timeout=WAIT_S, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"]

    daemon.send_signal(signal.SIGTERM)
    _, errors = daemon.communicate(timeout=WAIT_S)
    assert daemon.returncode == 0, errors
    assert "Traceback" not in errors
