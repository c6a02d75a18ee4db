"""The line a person types: history, completion, several lines."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    DummyCompleter,
    PathCompleter,
    WordCompleter,
)
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from mlx_server.cli.chat_session import OPTIONS


def history_path() -> Path:
    """Where the chat keeps what was typed: the platform's folder for state, or XDG's."""
    return platformdirs.user_state_path("mlx-serve", appauthor=False) / "chat_history"


class ChatPrompt:
    """Reads the person's turns. One per chat."""

    def __init__(self, commands: Iterable[str], history: Path) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_open_history(history),
            auto_suggest=AutoSuggestFromHistory(),
            completer=CommandCompleter(commands),
            complete_while_typing=True,
            reserve_space_for_menu=6,
            key_bindings=_key_bindings(),
            multiline=True,
            prompt_continuation="  ",
            placeholder=HTML("<ansibrightblack>Ask something, or /help</ansibrightblack>"),
        )

    async def read(self) -> str:
        """One turn, stripped. Raises `EOFError` on Ctrl-D and `KeyboardInterrupt` on Ctrl-C, in an empty line."""
        text: str = await self._session.prompt_async(HTML("<b>&gt; </b>"))
        return text.strip()


@contextmanager
def echo_off() -> Iterator[None]:
    """Keep what is typed during an answer from being mixed into it; it waits for the next prompt."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _open_history(path: Path) -> History:
    """The file when it can be written, readable by its owner only; otherwise memory."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


class CommandCompleter(Completer):
    """Completes a command in the first word of a turn, and its argument after it; nothing else."""

    def __init__(self, commands: Iterable[str]) -> None:
        self._commands = WordCompleter(list(commands), WORD=True)
        path = PathCompleter(expanduser=True)
        self._arguments: dict[str, Completer] = {
            "/set": WordCompleter(list(OPTIONS)),
            "/think": WordCompleter(["on", "off", "auto"]),
            "/save": path,
            "/load": path,
        }

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        command, space, argument = document.text_before_cursor.partition(" ")
        if not command.startswith("/") or "\n" in command:
            return ()
        if not space:
            return self._commands.get_completions(document, complete_event)
        completer = self._arguments.get(command, DummyCompleter())
        return completer.get_completions(Document(argument), complete_event)


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings
