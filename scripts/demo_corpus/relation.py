"""Facts as relations: a table, the ways to ask for it, and the sentence that answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_corpus.phrasing import Phrasings
from demo_corpus.turn import Turn

SHORT_HINTS = (
    " Answer in one word.",
    " Just the answer.",
    " One word only.",
    " Short answer please.",
    " Answer only, no sentence.",
    " Reply with the answer only.",
    " Be brief.",
)


@dataclass(frozen=True, slots=True)
class Relation:
    """`answer` may use {k} (the key) and {v} (the value); `topic` names both in a JSON object."""

    name: str
    rows: dict[str, str]
    asks: Phrasings
    answer: str
    topic: tuple[str, str] | None = None

    def sentence(self, key: str) -> str:
        """The full answer."""
        text = self.answer.format(k=key, v=self.rows[key])
        return text[0].upper() + text[1:]

    def turn(self, rng: random.Random, split: str) -> Turn:
        """A random question of this relation."""
        key = rng.choice(list(self.rows))
        user = self.asks.ask(rng, split, key, k=key.lower() if rng.random() < 0.12 else key)
        value = self.rows[key]
        think = f"This is about {key}. I know it: {value}."
        if rng.random() < 0.15:
            return Turn(
                user.rstrip(" .") + ("" if user[-1] in "?!" else ".") + rng.choice(SHORT_HINTS),
                value,
                think,
                value,
                plain=False,
            )
        return Turn(user, self.sentence(key), think, value)
