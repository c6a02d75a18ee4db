"""`mlx-serve ps` against a real daemon with a scripted engine, and where there is none."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_server import __version__
from mlx_server.cli.main import main
from mlx_server.cli.ps import duration
from mlx_server.core.settings import Settings
from mlx_server.daemon.server_thread import ServerThread
from mlx_server.services.keys import add_key
from tests.fakes.scripted_engine import ScriptedEngine


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.touch(mode=0o600)
    path.write_text('{"version": 1, "keys": []}')
    return path


@pytest.fixture
def server(keys_file: Path) -> Iterator[ServerThread]:
    with ServerThread(Settings(model="demo", keys_file=keys_file), lambda *_: ScriptedEngine()) as server:
        yield server


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["ps", *arguments])
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def test_what_runs(server: ServerThread, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--url", server.url)
    assert (code, err) == (0, "")
    assert "demo, 512 tokens of context" in out
    assert f"daemon {os.getpid()} (" in out
    assert "0 running, 0 waiting" in out
    assert f"mlx-serve {__version__}" in out


def test_json(server: ServerThread, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--url", server.url, "--json")
    about = json.loads(out)
    assert code == 0
    assert about["daemon"]["pid"] == os.getpid()
    assert about["daemon"]["rss_bytes"] > 1 << 20
    assert (about["model"], about["status"], about["running"], about["waiting"]) == ("demo", "ok", 0, 0)
    assert about["engine"] is None  # a scripted engine has no process


def test_no_daemon_says_how_to_start_one(capsys: pytest.CaptureFixture[str], unused_tcp_port: int) -> None:
    code, out, err = run(capsys, "--url", f"http://127.0.0.1:{unused_tcp_port}")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "'mlx-serve serve' starts one" in err


def test_the_key(
    server: ServerThread, keys_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = add_key(keys_file, "me")
    code, out, err = run(capsys, "--url", server.url)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "MLX_SERVE_API_KEY" in err
    monkeypatch.setenv("MLX_SERVE_API_KEY", key)
    assert run(capsys, "--url", server.url)[0] == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
