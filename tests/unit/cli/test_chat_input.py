"""Keys, completion and history of the prompt, on a pipe in place of a terminal."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from mlx_server.cli.chat_commands import COMMANDS
from mlx_server.cli.chat_input import ChatPrompt, CommandCompleter, history_path

ENTER, ALT_ENTER, CTRL_C, CTRL_D, UP = "\r", "\x1b\r", "\x03", "\x04", "\x1b[A"
WAIT_S = 10


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


async def read(path: Path, keys: PipeInput, typed: str) -> str:
    keys.send_text(typed)
    async with asyncio.timeout(WAIT_S):
        return await ChatPrompt(COMMANDS, path).read()


@pytest.mark.parametrize(
    ("typed", "turn"),
    [
        ("hello" + ENTER, "hello"),
        ("  padded  " + ENTER, "padded"),
        ("one" + ALT_ENTER + "two" + ENTER, "one\ntwo"),
        ("one\\" + ENTER + "two" + ENTER, "one\ntwo"),
        ("thrown away" + CTRL_C + "kept" + ENTER, "kept"),
        ("\x1b[200~pasted\nlines\x1b[201~" + ENTER, "pasted\nlines"),
    ],
)
async def test_turns(tmp_path: Path, keys: PipeInput, typed: str, turn: str) -> None:
    assert await read(tmp_path / "history", keys, typed) == turn


async def test_ctrl_d_leaves_and_ctrl_c_does_not(tmp_path: Path, keys: PipeInput) -> None:
    with pytest.raises(EOFError):
        await read(tmp_path / "history", keys, CTRL_D)
    with pytest.raises(KeyboardInterrupt):
        await read(tmp_path / "history", keys, CTRL_C)


async def test_history_outlives_the_chat_and_is_private(tmp_path: Path, keys: PipeInput) -> None:
    path = tmp_path / "state" / "history"
    await read(path, keys, "asked before" + ENTER)
    assert path.stat().st_mode & 0o077 == 0
    assert "asked before" in path.read_text()
    assert await read(path, keys, UP + ENTER) == "asked before"


async def test_history_that_cannot_be_written(tmp_path: Path, keys: PipeInput) -> None:
    (tmp_path / "file").write_text("")
    assert await read(tmp_path / "file" / "history", keys, "hello" + ENTER) == "hello"


def test_history_is_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path().name == "chat_history"
    assert history_path().parent.name == "mlx-serve"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("/se", {"/set"}),
        ("/", set(COMMANDS)),
        ("/set temp", {"temperature"}),
        ("/think ", {"on", "off", "auto"}),
        ("/system temp", set()),
        ("see /se", set()),
    ],
)
def test_completion(typed: str, offered: set[str]) -> None:
    found = CommandCompleter(COMMANDS).get_completions(Document(typed), CompleteEvent())
    assert {completion.text for completion in found} == offered
