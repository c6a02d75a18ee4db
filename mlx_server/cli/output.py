"""Tables and lists on stdout, for a person or a pipe."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 200
"""Columns where stdout is no terminal: wide enough that few lines wrap."""


def print_table(table: Table) -> None:
    out = Console()
    if not out.is_terminal:
        out = Console(width=PLAIN_WIDTH)
    out.print(table)


def facts_table(rows: Mapping[str, str]) -> Table:
    """A name and a value in each line; long values are folded, never cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(value))
    return table
