"""`mlx-serve chat` as a person and a script use it, with the embedded model."""

import json
import os
import re
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
from tests.e2e.screen import WAIT_S, Screen
from tests.fakes.scripted_engine import ScriptedEngine

MLX_SERVE = [sys.executable, "-c", "from mlx_server.cli.main import main; main()"]
CAPITAL = "What is the capital of France?"
CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    state = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path), "TERM": "xterm-256color"}
    return {**os.environ, **state, "PYTHONPATH": root, "MLX_SERVE_KV_MEMORY": "32MB"}


@pytest.fixture
def chat(server: ServerThread, env: dict[str, str]) -> Iterator[Screen]:
    """A chat with the running daemon that waits for a turn."""
    with Screen([*MLX_SERVE, "chat", "--url", server.url, "--temperature", "0"], env) as screen:
        screen.wait(lambda text: "Ask something" in text)
        yield screen


def answers(text: str) -> int:
    """Number of answers that are complete on the screen."""
    return text.count("first token")


def test_conversation(chat: Screen) -> None:
    chat.type_line(CAPITAL)
    text = chat.wait(lambda text: answers(text) == 1)
    assert re.search(r"> What is the capital of France\?\n.*Paris", text)
    assert re.search(r"tok/s · first token .* tokens · prompt \d+ \(\d+ cached\)", text)
    chat.type_line("And of Italy?")
    chat.wait(lambda text: answers(text) == 2)
    chat.type_line("/undo")
    chat.wait(lambda text: "forgotten: And of Italy?" in text)
    chat.type_line("/retry")
    chat.wait(lambda text: "asking again: And of Italy?" in text and answers(text) == 3)
    chat.send(CTRL_D)
    assert chat.exit_code() == 0


def test_ctrl_c_ends_the_request_and_keeps_the_text(env: dict[str, str], tmp_path: Path) -> None:
    """The fake engine stops in the middle of its answer, so that the interruption never comes too late."""
    words = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")).encode("one two three").ids
    engine = ScriptedEngine(reply=lambda request: [*words, *words], chunk=len(words), stall_after=1)
    path = tmp_path / "chat.json"
    with (
        ServerThread(Settings(model="demo", drain_s=0), lambda settings, folder, on_progress: engine) as server,
        Screen([*MLX_SERVE, "chat", "--url", server.url], env) as chat,
    ):
        chat.wait(lambda text: "Ask something" in text)
        chat.type_line("Count")
        chat.wait(lambda text: "one two three" in text)
        assert running(server) == 1
        chat.send(CTRL_C)
        chat.wait(lambda text: "interrupted" in text)
        deadline = time.monotonic() + WAIT_S
        while running(server):
            assert time.monotonic() < deadline, "the request went on"
        chat.type_line(f"/save {path}")
        chat.wait(lambda text: "saved to" in text)
        chat.type_line("/quit")
        assert chat.exit_code() == 0
    contents = [message["content"] for message in json.loads(path.read_text())["messages"]]
    assert contents == ["Count", "one two three"]


def running(server: ServerThread) -> int:
    health = httpx2.get(server.url + "/health", trust_env=False).json()
    return int(health["stats"]["running"])


def test_refused_turn_is_one_line_and_the_chat_goes_on(chat: Screen, tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"messages": [], "system": "again and " * 4000}))
    chat.type_line(f"/load {path}")
    chat.wait(lambda text: "loaded 0 exchanges" in text)
    chat.type_line(CAPITAL)
    chat.wait(lambda text: "maximum context length" in text and "(/undo takes" in text)
    chat.type_line("/system none")
    chat.wait(lambda text: "system prompt: none" in text)
    chat.type_line("/nonsense")
    chat.wait(lambda text: "there is no command /nonsense" in text)
    chat.type_line(CAPITAL)
    chat.wait(lambda text: answers(text) == 1)


def test_chat_starts_an_engine_when_no_daemon_runs(env: dict[str, str], unused_tcp_port: int) -> None:
    env["MLX_SERVE_PORT"] = str(unused_tcp_port)
    with Screen([*MLX_SERVE, "chat"], env) as chat:
        chat.wait(lambda text: "Started demo for this chat alone" in text and "Ask something" in text)
        chat.type_line(CAPITAL)
        chat.wait(lambda text: "Paris" in text and answers(text) == 1)
        chat.send(CTRL_D)
        assert chat.exit_code() == 0


def once(env: dict[str, str], *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [*MLX_SERVE, "chat", *arguments]
    return subprocess.run(command, input=stdin, env=env, capture_output=True, text=True, timeout=WAIT_S)


def test_one_answer_for_a_script(server: ServerThread, env: dict[str, str]) -> None:
    for arguments, stdin in (([CAPITAL], ""), ([], CAPITAL)):
        done = once(env, "--url", server.url, "--temperature", "0", *arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Paris" in done.stdout
        assert done.stdout.endswith("\n")


def test_script_learns_of_a_failure(server: ServerThread, env: dict[str, str]) -> None:
    done = once(env, "--url", server.url, stdin="again and " * 4000)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("mlx-serve: This model's maximum context length is")
    done = once(env, "--url", server.url, "--model", "another", CAPITAL)
    assert (done.returncode, done.stdout) == (1, "")
    assert "it serves 'demo', not 'another'" in done.stderr


def test_another_model_than_the_daemons(server: ServerThread, env: dict[str, str]) -> None:
    env["MLX_SERVE_PORT"] = server.url.rsplit(":", 1)[1]
    done = once(env, "--model", "./no-such-model", CAPITAL)
    assert done.returncode == 1
    assert "serves 'demo', not './no-such-model'" in done.stderr
    assert "there is no folder ./no-such-model" in done.stderr
