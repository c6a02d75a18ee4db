"""Rewrite the table of docs/configuration.md from `Settings` (`make docs`)."""

from pathlib import Path

from mlx_server.cli.flags import configuration_table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
START, END = "<!-- settings -->\n", "<!-- /settings -->"


def with_current_table(text: str) -> str:
    """`text` with the part between the two marks replaced. Raises `ValueError` when a mark is missing."""
    before, rest = text.split(START)
    _, after = rest.split(END)
    return before + START + configuration_table() + END + after


if __name__ == "__main__":
    PAGE.write_text(with_current_table(PAGE.read_text()))
