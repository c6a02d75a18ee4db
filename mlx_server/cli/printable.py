"""Text of others, made safe for a terminal."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Without control characters: a model's text must not steer the terminal."""
    return _CONTROLS.sub("", text)
