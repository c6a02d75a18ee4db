"""What the screen shows, read back through a terminal emulator."""

import asyncio
import io

import pyte
import pytest
from rich.console import Console

from mlx_server.cli import chat_view
from mlx_server.cli.chat_client import AnswerEnd, TextPart
from mlx_server.cli.chat_view import ChatView, figures_line

WIDTH, HEIGHT = 60, 12


class Terminal:
    """A console whose output a terminal emulator interprets."""

    def __init__(self) -> None:
        self._output = io.StringIO()
        self.console = Console(
            file=self._output, force_terminal=True, width=WIDTH, height=HEIGHT, legacy_windows=False, _environ={}
        )
        self._screen = pyte.HistoryScreen(WIDTH, HEIGHT, history=1000)

    @property
    def written(self) -> str:
        return self._output.getvalue()

    def lines(self) -> list[str]:
        """Scrolled-off lines and the screen, without trailing blanks."""
        self._screen.reset()
        pyte.Stream(self._screen).feed(self.written.replace("\n", "\r\n"))  # as a tty does
        above = ["".join(row[x].data for x in range(WIDTH)) for row in self._screen.history.top]
        lines = [line.rstrip() for line in [*above, *self._screen.display]]
        while lines and not lines[-1]:
            lines.pop()
        return lines


@pytest.fixture(autouse=True)
def _paint_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_view, "PAINT_INTERVAL_S", 0.0)


async def paint(terminal: Terminal, text: str, size: int = 3, is_reasoning: bool = False) -> None:
    with ChatView(terminal.console).answer() as painter:
        for i in range(0, len(text), size):
            painter.add(TextPart(text[i : i + size], is_reasoning))
            await asyncio.sleep(0)  # lets the scheduled repaint run


async def test_answer_is_shown_as_markdown() -> None:
    terminal = Terminal()
    await paint(terminal, "# Title\n\nSome **bold** text\nand more.\n\n- one\n- two\n\n```python\nx = 1\n```\n")
    lines = terminal.lines()
    assert lines == ["Title", "", "Some bold text", "and more.", "", " • one", " • two", "", " x = 1"]


async def test_text_longer_than_the_screen_scrolls_and_stays_whole() -> None:
    terminal = Terminal()
    await paint(terminal, "```\n" + "".join(f"line {i}\n" for i in range(3 * HEIGHT)) + "```\nend\n", size=11)
    assert terminal.lines() == [*(f" line {i}" for i in range(3 * HEIGHT)), "", "end"]


async def test_final_blocks_are_printed_once() -> None:
    terminal = Terminal()
    await paint(terminal, "first\n\nsecond\n\n" + "word " * 40, size=5)
    assert terminal.written.count("first") < 6
    assert "\n".join(terminal.lines()).count("first") == 1


async def test_reasoning_comes_before_the_answer() -> None:
    terminal = Terminal()
    with ChatView(terminal.console).answer() as painter:
        painter.add(TextPart("let me see\nwell", is_reasoning=True))
        await asyncio.sleep(0)
        painter.add(TextPart("Yes."))
        await asyncio.sleep(0)
    assert terminal.lines() == ["let me see", "well", "", "Yes."]


async def test_interrupted_answer_keeps_its_text() -> None:
    terminal = Terminal()

    async def stream() -> None:
        with ChatView(terminal.console).answer() as painter:
            painter.add(TextPart("half an ans"))
            await asyncio.Event().wait()

    task = asyncio.create_task(stream())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert terminal.lines() == ["half an ans"]


async def test_answer_without_text_leaves_nothing() -> None:
    terminal = Terminal()
    await paint(terminal, "")
    assert terminal.lines() == []


async def test_model_text_cannot_steer_the_terminal() -> None:
    terminal = Terminal()
    await paint(terminal, "safe \x1b[2Jtext", size=100)
    assert terminal.lines() == ["safe [2Jtext"]


def test_figures() -> None:
    end = AnswerEnd("stop", 0.123, 45.67, 100, 20, 96)
    assert figures_line(end) == "45.7 tok/s · first token 0.12 s · 20 tokens · prompt 100 (96 cached)"
    end = AnswerEnd("length", 1.0, None, None, None, None)
    assert figures_line(end) == "first token 1.00 s · cut off at the token limit"
