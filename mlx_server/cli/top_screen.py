"""The screen of `mlx-serve top`: a frame for each second of the feed, and the key that leaves."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mlx_server.api.live.facts import Facts, History, Point
from mlx_server.cli.chat_client import ChatClient, ChatError
from mlx_server.cli.daemon_client import watch
from mlx_server.cli.top_frame import frame

_KEPT_POINTS = 600
_RETRY_S = 1.0
_HINT = Text("q leaves", style="dim")


class TopScreen:
    """Owned by the event loop. points: the history of the feed, oldest first; facts: None before the first."""

    def __init__(self, url: str, key: str | None, console: Console) -> None:
        self._url = url
        self._key = key
        self._console = console
        self._points: deque[Point] = deque(maxlen=_KEPT_POINTS)
        self._facts: Facts | None = None

    async def once(self) -> None:
        """Raises `ChatError`."""
        await self._follow(lambda facts: False)
        if self._facts is None:
            raise ChatError(f"the daemon at {self._url} says nothing of itself")
        self._console.print(frame(self._facts, self._points, self._url, self._console.size))

    async def run(self) -> None:
        """Until q or Ctrl-C. A daemon that goes away is waited for. Raises `ChatError` when there is none at first."""
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            drawing = asyncio.create_task(self._draw(live))
            with _on_key("q", drawing.cancel), suppress(asyncio.CancelledError):
                await drawing

    async def _draw(self, live: Live) -> None:
        def show(facts: Facts, last_line: Text = _HINT) -> bool:
            shown = frame(facts, self._points, self._url, self._console.size)
            live.update(Group(shown, last_line), refresh=True)
            return True

        while True:
            try:
                await self._follow(show)
            except ChatError as error:
                if self._facts is None:
                    raise
                show(self._facts, Text(f"trying again: {error}", style="bold red", no_wrap=True, overflow="ellipsis"))
                await asyncio.sleep(_RETRY_S)

    async def _follow(self, show: Callable[[Facts], bool]) -> None:
        """Until the feed ends, or `show` of the newest facts is false. Raises `ChatError`."""
        async with ChatClient(self._url, key=self._key) as client, aclosing(watch(client)) as feed:
            async for message in feed:
                if isinstance(message, History):
                    self._points.clear()
                    self._points.extend(message.points)
                    continue
                self._facts = message
                self._points.append(message.point)
                if not show(message):
                    return


@contextmanager
def _on_key(key: str, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` when `key` is typed; other keys do nothing, and none is echoed."""
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if key.encode() in os.read(terminal, 1024):
            act()

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
