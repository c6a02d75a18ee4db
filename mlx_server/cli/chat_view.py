"""What the chat shows: answers as they arrive, notices, and one dim line of figures."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from mlx_server.cli.chat_client import AnswerEnd, TextPart
from mlx_server.cli.chat_markdown import render_markdown, split_final
from mlx_server.cli.printable import printable

PAINT_INTERVAL_S = 0.05
"""Faster repainting costs the terminal work and shows nothing more."""


class ChatView:
    """Writes to one console. Not thread-safe: the chat loop owns it."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def notice(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def error(self, text: str) -> None:
        self._console.print(Text(text, style="red"))

    def show(self, renderable: ConsoleRenderable) -> None:
        self._console.print(renderable)

    def turn(self, prompt: str, answer: str) -> None:
        """An exchange of a loaded conversation."""
        self._console.print(Text("> " + printable(prompt), style="bold"))
        self._console.print(render_markdown(printable(answer)))
        self._console.print()

    def answer(self) -> AnswerPainter:
        return AnswerPainter(self._console)

    def figures(self, end: AnswerEnd) -> None:
        self._console.print(Text(figures_line(end), style="dim"), end="\n\n")


class AnswerPainter:
    """Paints one answer while it grows. A context manager; leaving it makes the text permanent.

    Blocks that can change no more are printed once and scroll away like any output; only the last one
    is repainted, so long answers neither flicker nor overflow the screen (`test_final_blocks_are_printed_once`).
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="visible")
        self._tail = ""
        self._is_reasoning = False
        self._printed_any = False
        self._painted_at = 0.0
        self._due: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._live.update(Text("...", style="dim"))
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._due is not None:
            self._due.cancel()
        tail, self._tail = self._tail, ""
        self._live.update(Text(""))
        self._live.stop()
        self._print(tail)

    def add(self, part: TextPart) -> None:
        """Append text; the screen follows within `PAINT_INTERVAL_S`."""
        if part.is_reasoning is not self._is_reasoning:
            tail, self._tail = self._tail, ""
            self._print(tail)
            self._is_reasoning = part.is_reasoning
        self._tail += printable(part.text)
        if self._due is None:
            wait = max(0.0, self._painted_at + PAINT_INTERVAL_S - time.monotonic())
            self._due = asyncio.get_running_loop().call_later(wait, self._paint)

    def _paint(self) -> None:
        self._due = None
        self._painted_at = time.monotonic()
        length = self._tail.rfind("\n") + 1 if self._is_reasoning else split_final(self._tail)
        final, self._tail = self._tail[:length], self._tail[length:]
        rest = self._tail.strip("\n")
        self._live.update(_Tail(self._render(rest), gap=self._printed_any or bool(final.strip())))
        self._print(final)
        self._live.refresh()

    def _print(self, text: str) -> None:
        """Make a whole block permanent."""
        text = text.strip("\n")
        if not text.strip():
            return
        if self._printed_any and not self._is_reasoning:
            self._console.print()
        self._console.print(self._render(text))
        self._printed_any = True

    def _render(self, text: str) -> ConsoleRenderable:
        return Text(text, style="dim italic") if self._is_reasoning else render_markdown(text)


class _Tail:
    """The last lines of a renderable that fit on the screen; a cut at the bottom would hide the newest."""

    def __init__(self, content: ConsoleRenderable, gap: bool) -> None:
        self._content = content
        self._gap = gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options, pad=False)
        if self._gap and lines:
            lines.insert(0, [])
        for line in lines[-max(1, console.size.height - 1) :]:
            yield from line
            yield Segment.line()


def figures_line(end: AnswerEnd) -> str:
    """Speed, time to first token and token counts, leaving out what is not known."""
    figures = []
    if end.tokens_per_s is not None:
        figures.append(f"{end.tokens_per_s:.1f} tok/s")
    figures.append(f"first token {end.first_token_s:.2f} s")
    if end.completion_tokens is not None:
        figures.append(f"{end.completion_tokens} tokens")
    if end.prompt_tokens is not None:
        cached = "" if end.cached_tokens is None else f" ({end.cached_tokens} cached)"
        figures.append(f"prompt {end.prompt_tokens}{cached}")
    if end.finish_reason == "length":
        figures.append("cut off at the token limit")
    return " · ".join(figures)
