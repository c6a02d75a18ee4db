"""Exit codes and error lines of the command."""

import io
import sys

import pytest

import mlx_server
from mlx_server.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"mlx-serve {mlx_server.__version__}\n", "")


def test_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "serve", "--max-queue", "0")
    assert (code, out) == (2, "")
    assert err.startswith("mlx-serve: max_queue = '0'")
    assert err.count("\n") == 1


def test_model_that_cannot_be_loaded_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "serve", "--port", "0", "--model", "./no-such-folder")
    assert (code, out) == (1, "")
    last = err.splitlines()[-1]
    assert last.startswith("mlx-serve: ")
    assert "no-such-folder" in last
    assert "Traceback" not in err


def test_unknown_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "serve", "--no-such-flag")
    assert code == 2
    assert "--no-such-flag" in err


def test_chat_without_a_question_or_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, out, err = run(capsys, "chat")
    assert (code, out) == (2, "")
    assert "nothing to ask" in err


def test_chat_refuses_an_illegal_option(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, _, err = run(capsys, "chat", "--temperature", "3", "hello")
    assert code == 2
    assert "temperature must be a number from 0 to 2" in err


def test_chat_when_nothing_answers_at_a_given_url(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, out, err = run(capsys, "chat", "--url", f"http://127.0.0.1:{unused_tcp_port}", "hello")
    assert (code, out) == (1, "")
    assert "nothing answers there" in err
    assert err.count("\n") == 1
