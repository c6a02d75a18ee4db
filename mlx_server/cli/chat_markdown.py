"""Markdown of a growing answer: which part is final, and how it looks."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.markdown import Heading, Markdown
from rich.segment import Segment

# html off: tags a model writes are text to be seen, where rich would drop them.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def split_final(text: str) -> int:
    """Length of the start of `text` that nothing appended to it can change any more.

    It ends where the last block of the complete lines begins: a list, table or fence that may still grow
    is never cut. 0 when no block is known to be complete.
    """
    complete = text[: text.rfind("\n") + 1]
    starts = [token.map[0] for token in _PARSER.parse(complete) if token.level == 0 and token.map]
    last_line = max(starts, default=0)
    return sum(len(line) for line in complete.splitlines(keepends=True)[:last_line])


def render_markdown(text: str) -> ConsoleRenderable:
    """A renderable that keeps the line breaks of the text, as people expect in a chat."""
    blocks: list[list[Token]] = []
    for token in _PARSER.parse(text):
        if token.level == 0 and token.nesting >= 0:
            blocks.append([])
        blocks[-1].append(token)
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return _Blocks(blocks)


class _LeftHeading(Heading):
    """rich centres first-level headings, which looks lost beside left-aligned text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _LeftMarkdown(Markdown):
    elements = Markdown.elements | {"heading_open": _LeftHeading}


class _Blocks:
    """Blocks with one blank line between them, and none around: rich alone puts none, one or two."""

    def __init__(self, blocks: list[list[Token]]) -> None:
        self._blocks = blocks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, tokens in enumerate(self._blocks):
            markdown = _LeftMarkdown("", code_theme="ansi_dark", hyperlinks=False)
            markdown.parsed = tokens
            lines = console.render_lines(markdown, options, pad=False)
            shown = [i for i, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
            if number and shown:
                yield Segment.line()
            for line in lines[shown[0] : shown[-1] + 1] if shown else []:
                yield from line
                yield Segment.line()
