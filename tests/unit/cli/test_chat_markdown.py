import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mlx_server.cli.chat_markdown import render_markdown, split_final
from mlx_server.cli.printable import printable

LINES = [
    "# head\n",
    "text\n",
    "- item\n",
    "  - deeper\n",
    "1. one\n",
    "```\n",
    "\n",
    "| a | b |\n",
    "|---|---|\n",
    "> q\n",
]


def shown(text: str, width: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render_markdown(text))
    output = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in output.splitlines())


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("", ""),
        ("one line still growing", ""),
        ("a\n\nb", ""),
        ("a\n\nb\n", "a\n\n"),
        ("# t\ntext\n", "# t\n"),
        ("- a\n\n- b\n", ""),
        ("1. a\n\n2", ""),
        ("1. a\n\n2. b\n", ""),
        ("```\na\n\n# no heading\n", ""),
        ("```\na\n```\nafter\n", "```\na\n```\n"),
        ("| a |\n|---|\n| 1 |\n", ""),
    ],
)
def test_what_is_final(text: str, final: str) -> None:
    assert text[: split_final(text)] == final


@given(st.lists(st.sampled_from(LINES), max_size=12), st.lists(st.sampled_from(LINES), max_size=4))
def test_nothing_appended_changes_what_was_final(lines: list[str], more: list[str]) -> None:
    text = "".join(lines)
    final = text[: split_final(text)]
    assert split_final(text + "".join(more)) >= len(final)


def test_line_breaks_stay() -> None:
    assert shown("roses\nviolets") == "roses\nviolets"


def test_tags_are_text() -> None:
    assert shown("<think>\nhm\n</think>") == "<think>\nhm\n</think>"


def test_no_blank_lines_around_blocks() -> None:
    for text in ("- a\n- b", "| a |\n|---|\n| 1 |", "```\ncode\n```", "# title"):
        lines = shown(text).splitlines()
        assert lines[0].strip()
        assert lines[-1].strip()


def test_terminal_controls_are_removed() -> None:
    assert printable("a\x1b]0;title\x07b\x9b31mc\r\n\td\x7f") == "a]0;titleb31mc\n\td"
