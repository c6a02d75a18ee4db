"""`mlx-serve chat` and API keys: with a daemon that needs one, and with a daemon of its own."""

import io
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from rich.console import Console
from tokenizers import Tokenizer

from mlx_server.cli.chat_backend import chat_backend
from mlx_server.cli.main import main
from mlx_server.core.settings import Settings
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.daemon.server_thread import ServerThread
from mlx_server.services.keys import add_key
from tests.e2e.screen import WAIT_S
from tests.fakes.scripted_engine import ScriptedEngine

Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets logging up for its whole process, which here is that of the tests."""
    for name in ("mlx_server", "uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "level", logging.NOTSET)
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "propagate", True)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def key(keys_file: Path) -> str:
    return add_key(keys_file, "chat")[1]


@pytest.fixture
def server(keys_file: Path, key: str) -> Iterator[ServerThread]:
    words = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")).encode("Paris").ids
    engine = ScriptedEngine(reply=lambda request: words)
    with ServerThread(Settings(model="demo", keys_file=keys_file), lambda *_: engine) as server:
        yield server


@pytest.fixture
def ask(server: ServerThread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs the command with these flags and gives its exit code, stdout and stderr."""

    def run(*flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        with pytest.raises(SystemExit) as exit_info:
            main(["chat", "--url", server.url, *flags, "What is the capital of France?"])
        return int(exit_info.value.code or 0), *capsys.readouterr()

    return run


def test_the_key_comes_from_the_flag_or_the_environment(ask: Ask, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("--key", key) == (0, "Paris\n", "")
    monkeypatch.setenv("MLX_SERVE_API_KEY", key)
    assert ask() == (0, "Paris\n", "")


def test_without_a_key_one_line_says_how_to_give_one(ask: Ask, key: str) -> None:
    for flags, words in (
        ([], "--key or MLX_SERVE_API_KEY"),
        (["--key", key[:-1]], "--key or MLX_SERVE_API_KEY"),
        (["--key", "\xfc"], "characters that no key has"),
    ):
        code, out, err = ask(*flags)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert words in err
        assert key[14:-1] not in err


def test_a_daemon_of_ones_own_takes_this_chats_key_and_no_other(
    keys_file: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither locked out by keys that exist, nor open to whoever finds the port."""
    monkeypatch.setenv("MLX_SERVE_KEYS_FILE", str(keys_file))
    monkeypatch.setenv("MLX_SERVE_KV_MEMORY", "32MB")
    monkeypatch.setenv("MLX_SERVE_ENGINE", "inprocess")
    monkeypatch.setenv("MLX_SERVE_PORT", "1")  # nothing listens there
    with (
        chat_backend(None, None, None, Console(file=io.StringIO())) as backend,
        httpx.Client(base_url=backend.url, timeout=WAIT_S, trust_env=False) as client,
    ):
        assert backend.key is not None
        mine = client.get("/v1/models", headers={"authorization": f"Bearer {backend.key}"})
        assert mine.status_code == 200
        for headers in ({}, {"authorization": f"Bearer {key}"}):
            assert client.get("/v1/models", headers=headers).status_code == 401
    assert keys_file.exists()
