"""`mlx-serve top` in a terminal of 80 by 24, and one frame of it for a script."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from mlx_server.core.settings import Settings
from mlx_server.daemon.server_thread import ServerThread
from mlx_server.services.keys import add_key
from tests.e2e.screen import WAIT_S, Screen
from tests.fakes.scripted_engine import ScriptedEngine

MLX_SERVE = [sys.executable, "-c", "from mlx_server.cli.main import main; main()"]
CTRL_C = "\x03"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "HOME": str(tmp_path), "TERM": "xterm-256color", "PYTHONPATH": root}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.touch(mode=0o600)
    path.write_text('{"version": 1, "keys": []}')
    return path


@pytest.fixture
def server(keys_file: Path) -> Iterator[ServerThread]:
    """Its requests stall after the first token."""
    settings = Settings(model="demo", keys_file=keys_file, drain_s=0)
    with ServerThread(settings, lambda *_: ScriptedEngine(stall_after=1)) as server:
        yield server


@pytest.fixture
def stalled(server: ServerThread) -> Iterator[None]:
    """A request that is being answered, until the test ends."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
    begun, leave = threading.Event(), threading.Event()

    def ask() -> None:
        url = server.url + "/v1/chat/completions"
        with (
            httpx2.Client(trust_env=False, timeout=WAIT_S) as client,
            client.stream("POST", url, json=body) as response,
        ):
            chunks = response.iter_raw()
            next(chunks)
            begun.set()
            leave.wait(WAIT_S)

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(WAIT_S)
    yield
    leave.set()
    thread.join()


@pytest.mark.parametrize("key", ["q", CTRL_C])
def test_it_shows_what_the_daemon_does_until_q(
    server: ServerThread, stalled: None, env: dict[str, str], key: str
) -> None:
    httpx2.post(server.url + "/v1/chat/completions", json={"messages": []}, trust_env=False)
    with Screen([*MLX_SERVE, "top", "--url", server.url], env, width=80, height=24) as screen:
        text = screen.wait(lambda text: "1 live requests" in text and "q leaves" in text)
        assert text.splitlines()[0].startswith("mlx-serve ")
        assert "memory" in text and "KV pool" in text and "tok/s" in text
        assert "normal 0+1" in text and "decoding" in text
        assert "400" in text and "POST /v1/chat/completions" in text
        screen.send("x")
        screen.send(key)
        assert screen.exit_code() == 0


def test_it_waits_for_a_daemon_that_goes_away(server: ServerThread, env: dict[str, str]) -> None:
    with Screen([*MLX_SERVE, "top", "--url", server.url], env, width=80, height=24) as screen:
        screen.wait(lambda text: "q leaves" in text)
        server.stop()
        screen.wait(lambda text: "trying again" in text)
        screen.send("q")
        assert screen.exit_code() == 0


def once(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*MLX_SERVE, "top", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, env=env, capture_output=True, text=True, timeout=WAIT_S)


def test_one_frame_for_a_script(server: ServerThread, keys_file: Path, env: dict[str, str]) -> None:
    done = once(env, "--once", "--url", server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no live requests" in done.stdout and "\x1b" not in done.stdout
    _, key = add_key(keys_file, "me")
    done = once(env, "--once", "--url", server.url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "MLX_SERVE_API_KEY" in done.stderr
    assert once({**env, "MLX_SERVE_API_KEY": key}, "--once", "--url", server.url).returncode == 0


def test_without_a_daemon_or_a_terminal(env: dict[str, str], unused_tcp_port: int) -> None:
    done = once(env, "--once", "--url", f"http://127.0.0.1:{unused_tcp_port}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    done = once(env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--once" in done.stderr
