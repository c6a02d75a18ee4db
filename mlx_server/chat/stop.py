"""Stop strings, found in the text whatever the token boundaries.

The answer is cut where the earliest stop string *begins*. Characters go through an automaton
(Aho-Corasick: A. V. Aho, M. J. Corasick, "Efficient string matching", CACM 18(6), 1975) whose depth is
the longest suffix that may still become a stop string: that much is held back and nothing else. Because
it works character by character, the result does not depend on how the text was split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class _Automaton:
    """goto: state -> character -> state. depth: length of a state's string.

    longest: length of the longest stop string that ends in a state, 0 for none.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.goto: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.longest = [0]
        for stop in stops:
            self._add(stop)
        self.fail = [0] * len(self.goto)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self.goto[state]:
                self.goto[state][char] = len(self.goto)
                self.goto.append({})
                self.depth.append(self.depth[state] + 1)
                self.longest.append(0)
            state = self.goto[state][char]
        self.longest[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self.goto[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self.goto[state].items():
                queue.append(child)
                self.fail[child] = self.step(self.fail[state], char)
                self.longest[child] = max(self.longest[child], self.longest[self.fail[child]])

    def step(self, state: int, char: str) -> int:
        while char not in self.goto[state]:
            if state == 0:
                return 0
            state = self.fail[state]
        return self.goto[state][char]


class StopMatcher:
    """One choice's stop strings, none of them empty. Once `matched`, nothing leaves any more."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched = False
        self._automaton = _Automaton(stops) if stops else None
        self._state = 0
        self._held = ""
        self._cut: int | None = None  # where the best match so far begins, in `_held`

    def push(self, text: str) -> str:
        """Text that is certainly before any stop string."""
        if self.matched or not text:
            return ""
        if self._automaton is None:
            return text
        start = len(self._held)
        self._held += text
        for at in range(start, len(self._held)):
            if self._advance(at):
                return self._finish()
        if self._cut is not None:
            return ""
        return self._release(len(self._held) - self._automaton.depth[self._state])

    def flush(self) -> str:
        """The end of the text: what is held back cannot become a stop string any more."""
        if self._cut is not None:
            return self._finish()
        return self._release(len(self._held))

    def _advance(self, at: int) -> bool:
        """Take the character at `at`. True once no stop string can begin before the best match."""
        automaton = self._automaton
        if automaton is None:
            return False
        self._state = automaton.step(self._state, self._held[at])
        length = automaton.longest[self._state]
        if length:
            begin = at + 1 - length
            self._cut = begin if self._cut is None else min(self._cut, begin)
        begins_at = at + 1 - automaton.depth[self._state]
        return self._cut is not None and begins_at >= self._cut

    def _finish(self) -> str:
        self.matched = True
        return self._release(self._cut or 0)

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], "" if self.matched else self._held[length:]
        return text
