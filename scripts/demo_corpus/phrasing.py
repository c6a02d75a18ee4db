"""Question templates, their held-out part, and the noise that real users add."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

TRAIN, EVAL = "train", "eval"
HELD_COMBINATION_IN = 10  # one (key, template) pair in ten is never trained on

_OPENERS = (
    "Please, ",
    "Hey, ",
    "Hi, ",
    "Hello, ",
    "Ok, ",
    "Okay, ",
    "So ",
    "Now ",
    "And ",
    "Quick question: ",
    "Question: ",
    "One more thing: ",
    "I have a question: ",
    "Next question: ",
    "Well, ",
    "Also, ",
    "Hi! ",
    "Hello! ",
    "Sorry, ",
    "Tell me, ",
    "Good. ",
    "Thanks. ",
    "Great, ",
    "Next: ",
)
_CLOSERS = (" Thanks.", " Thanks!", " Please.", " Thank you.", " please", " thanks", " Thank you!")


def is_held(name: str, index: int, key: str) -> bool:
    """Whether template `index` of `name` is kept out of training for `key`."""
    return zlib.crc32(f"{name}|{index}|{key}".encode()) % HELD_COMBINATION_IN == 0


def roughen(rng: random.Random, template: str) -> str:
    """Vary case, final punctuation and politeness; leaves {fields} alone."""
    text = template
    if rng.random() < 0.22:
        opener = rng.choice(_OPENERS)
        text = opener + (text[0].lower() + text[1:] if text[:2] not in ("I ", "I'") else text)
    if rng.random() < 0.15 and text[-1] in ".?!":
        text = text[:-1]
    if rng.random() < 0.07:
        text += rng.choice(_CLOSERS)
    roll = rng.random()
    if roll < 0.12:
        return text.lower()
    if roll < 0.2:
        return text[0].lower() + text[1:]
    return text


@dataclass(slots=True)
class Phrasings:
    """The ways to ask one thing; `held` templates are for evaluation only."""

    name: str
    train: list[str]
    held: list[str] = field(default_factory=list)

    def template(self, rng: random.Random, split: str, key: str) -> str:
        """A template for `key`: trained on, or (in the eval split) never seen with this key."""
        if split == TRAIN:
            while True:
                index = rng.randrange(len(self.train))
                if not is_held(self.name, index, key):
                    return self.train[index]
                if len(self.train) == 1:
                    return self.train[0]
        unseen = [t for i, t in enumerate(self.train) if is_held(self.name, i, key)] if key else []
        if (unseen and rng.random() < 0.5) or not self.held:
            return rng.choice(unseen or self.train)
        return rng.choice(self.held)

    def ask(self, rng: random.Random, split: str, key: str = "", **fields: object) -> str:
        """A roughened question with its fields filled in."""
        return roughen(rng, self.template(rng, split, key)).format(**fields)
