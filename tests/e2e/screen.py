"""A program in a pseudo terminal, and what its screen shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import pexpect
import pyte

WIDTH, HEIGHT = 100, 40
WAIT_S = 60.0
"""Far above what anything takes; a wait ends as soon as its condition holds."""


class Screen:
    """A context manager; on leaving, the program is ended if it still runs."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], width: int = WIDTH, height: int = HEIGHT
    ) -> None:
        self._child = pexpect.spawn(
            command[0], list(command[1:]), dimensions=(height, width), env=dict(env), encoding="utf-8", timeout=WAIT_S
        )
        self._screen = pyte.Screen(width, height)
        self._screen.write_process_input = self._child.send  # answers to the program's queries
        self._stream = pyte.Stream(self._screen)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.close(force=True)

    @property
    def text(self) -> str:
        """The screen's lines without the blanks at their ends."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def send(self, keys: str) -> None:
        self._child.send(keys)

    def type_line(self, line: str) -> None:
        """A line and Enter."""
        self._child.send(line + "\r")

    def wait(self, condition: Callable[[str], object]) -> str:
        """The screen once `condition` of it holds. Fails the test after `WAIT_S`, showing the screen."""
        deadline = time.monotonic() + WAIT_S
        while not condition(self.text):
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"the screen did not come to that:\n{self.text}")
            try:
                self._stream.feed(self._child.read_nonblocking(65536, timeout=left))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                if condition(self.text):
                    break
                raise AssertionError(f"the program ended:\n{self.text}") from None
        return self.text

    def exit_code(self) -> int:
        """Read to the end of the program's output and return its exit code."""
        while True:
            try:
                self._stream.feed(self._child.read_nonblocking(65536, timeout=WAIT_S))
            except pexpect.EOF:
                break
        self._child.close()
        if self._child.exitstatus is None:
            raise AssertionError(f"ended by signal {self._child.signalstatus}")
        return self._child.exitstatus
