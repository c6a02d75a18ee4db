"""Keeping control tokens out of the hands of whoever writes a message.

A chat template joins its own control tokens (`<|im_end|>`) and the messages into one text, and
encoding that text recognises a control token wherever it stands. So before rendering, every control
token inside user-supplied text is *marked* (`START <|im_end|> END`, which leaves string tests in
templates such as `'</think>' in content` working), and after rendering each mark becomes the same
text cut into pieces by `BREAK`: the encoder sees no control token there, and the breaks are dropped
from its output. The three marks are Unicode noncharacters, which are not meant for interchange: in
user-supplied text they become U+FFFD.

Not covered: control tokens of a single character (they cannot be cut), and a template that takes a
marked token apart and writes the token without its marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

START, END, BREAK = "\ufdd0", "\ufdd1", "\ufdd2"
_ANY_MARK = re.compile(f"[{START}{END}{BREAK}]")
_REPLACEMENT = "\ufffd"
_NEVER = "(?!)"


class ControlTokens:
    """The control tokens of one model, and how to write them as text."""

    def __init__(self, tokens: Iterable[str]) -> None:
        cuttable = {token for token in tokens if len(token) > 1 and not token.isspace()}
        self.tokens = tuple(sorted(cuttable, key=len, reverse=True))
        alternatives = "|".join(map(re.escape, self.tokens)) or _NEVER
        self._token = re.compile(alternatives)
        self._marked = re.compile(f"{START}({alternatives}){END}")
        self._start_of_any = re.compile(f"(?={alternatives})")

    def mark(self, value: Any) -> Any:
        """A copy of `value` (JSON-like) with the control tokens of all its strings marked.

        Dict keys are strings like any other.
        """
        if isinstance(value, str):
            return self._token.sub(f"{START}\\g<0>{END}", _ANY_MARK.sub(_REPLACEMENT, value))
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark(item) for item in value]
        return value

    def cut(self, rendered: str) -> str:
        """Rendered text whose marked tokens are cut by `BREAK`; marks that lost their token are dropped."""
        if _ANY_MARK.search(rendered) is None:
            return rendered
        cut = self._marked.sub(lambda match: self._cut_token(match[1]), rendered)
        return cut.replace(START, "").replace(END, "")

    def cut_all(self, text: str) -> str:
        """`text` with every control token cut: all of it is ordinary text."""
        return self.cut(self.mark(text))

    def _cut_token(self, token: str) -> str:
        """No control token survives inside, or across either end, of what this returns."""
        starts = {match.start() + 1 for match in self._start_of_any.finditer(token)}
        inside = "".join(BREAK + char if at in starts else char for at, char in enumerate(token))
        return BREAK + inside + BREAK
