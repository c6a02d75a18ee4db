"""Order: days, months, letters, counting."""

from __future__ import annotations

import random

from demo_corpus.phrasing import Phrasings
from demo_corpus.turn import Turn
from demo_corpus.words import MONTHS, WEEKDAYS

_NEXT = Phrasings(
    "next",
    [
        "What comes after {k}?",
        "Which {n} comes after {k}?",
        "What {n} comes after {k}?",
        "Which {n} follows {k}?",
        "What is the {n} after {k}?",
        "What is next after {k}?",
        "Name the {n} after {k}.",
        "{k} comes before which {n}?",
    ],
    ["What follows {k}?", "Can you tell me which {n} comes after {k}?", "Which {n} is after {k}?"],
)
_PREVIOUS = Phrasings(
    "previous",
    [
        "What comes before {k}?",
        "Which {n} comes before {k}?",
        "What {n} comes before {k}?",
        "What is the {n} before {k}?",
        "Name the {n} before {k}.",
        "Which {n} is right before {k}?",
    ],
    ["Can you tell me which {n} comes before {k}?", "Which {n} is before {k}?"],
)
_COUNT = Phrasings(
    "count",
    [
        "Count from {a} to {b}.",
        "Count {a} to {b}.",
        "Please count from {a} to {b}",
        "Can you count from {a} to {b}?",
        "Count up from {a} to {b}.",
        "Say the numbers from {a} to {b}.",
        "List the numbers from {a} to {b}.",
        "Give me the numbers from {a} to {b}.",
        "Write the numbers {a} to {b}.",
    ],
    [
        "I want you to count from {a} to {b}.",
        "Could you count from {a} up to {b}?",
        "Tell me all numbers from {a} to {b}.",
    ],
)
_DOWN = Phrasings(
    "down",
    [
        "Count down from {a} to {b}.",
        "Count backwards from {a} to {b}.",
        "Count from {a} down to {b}.",
        "Count backward from {a} to {b}.",
        "Can you count down from {a} to {b}?",
        "Do a countdown from {a} to {b}.",
    ],
    ["Count back from {a} to {b}.", "Please count backwards from {a} down to {b}."],
)
_TO = Phrasings(
    "count_to",
    [
        "Count to {b}.",
        "Please count to {b}",
        "Can you count to {b}?",
        "Count up to {b}.",
        "I want you to count to {b}.",
        "Could you count up to {b}?",
    ],
    ["Let me see you count to {b}.", "Can you count up to {b}?"],
)
_ALL = {
    "days": (
        Phrasings(
            "days",
            [
                "List the days of the week.",
                "What are the days of the week?",
                "Name the days of the week.",
                "Name all days of the week.",
                "Say the days of the week.",
                "Which days does a week have?",
                "Give me the days of the week.",
            ],
            ["Tell me the days of the week.", "Can you list all days of the week?"],
        ),
        ", ".join(WEEKDAYS),
    ),
    "months": (
        Phrasings(
            "months",
            [
                "List the months of the year.",
                "What are the months of the year?",
                "Name all months.",
                "Name the months of the year.",
                "List all twelve months.",
                "Which months does a year have?",
                "Give me the months of the year.",
                "Say all the months.",
            ],
            ["Tell me the months of the year.", "Can you list all the months?"],
        ),
        ", ".join(MONTHS),
    ),
    "alphabet": (
        Phrasings(
            "alphabet",
            [
                "Say the alphabet.",
                "Recite the alphabet.",
                "What is the alphabet?",
                "Write the alphabet.",
                "Give me the alphabet.",
                "List the letters of the alphabet.",
                "Name all letters of the alphabet.",
            ],
            ["Tell me the alphabet.", "Can you say the alphabet?"],
        ),
        " ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    ),
    "seasons": (
        Phrasings(
            "seasons",
            [
                "List the seasons.",
                "What are the four seasons?",
                "Name the seasons of the year.",
                "Which seasons are there?",
                "Give me the four seasons.",
            ],
            ["Tell me the seasons.", "Can you name the four seasons?"],
        ),
        "spring, summer, autumn, winter",
    ),
    "planets": (
        Phrasings(
            "planets",
            [
                "List the planets.",
                "What are the planets of the solar system?",
                "Name the planets.",
                "Name all planets of the solar system.",
                "Which planets are there?",
                "Give me the names of the planets.",
            ],
            ["Tell me the planets.", "Can you list the planets of the solar system?"],
        ),
        "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune",
    ),
}
_NOUN = {"day": WEEKDAYS, "month": MONTHS, "letter": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ")}


def sequence_turn(rng: random.Random, split: str) -> Turn:
    """A question about order, or something to recite."""
    roll = rng.random()
    if roll < 0.5:
        return _neighbour(rng, split)
    if roll < 0.68:
        name = rng.choice(list(_ALL))
        asks, items = _ALL[name]
        return Turn(asks.ask(rng, split), items + ".", f"I list the {name} in order.", plain=False)
    return count_turn(rng, split, longest=22)


def count_turn(rng: random.Random, split: str, longest: int) -> Turn:
    """Counting up or down over at most `longest` numbers."""
    if rng.random() < 0.35:
        end = rng.choice((10, 20, 50, rng.randint(3, 50))) if longest > 22 else rng.randint(3, 20)
        numbers = list(range(1, end + 1))
        user = _TO.ask(rng, split, str(end), b=end)
    else:
        size = rng.randint(3, longest)
        first = rng.choice((1, 1, rng.randint(0, 20), rng.randint(0, 90)))
        numbers = list(range(first, first + size))
        asks = _COUNT
        if rng.random() < 0.35:
            numbers.reverse()
            asks = _DOWN
        user = asks.ask(rng, split, f"{numbers[0]},{numbers[-1]}", a=numbers[0], b=numbers[-1])
    return Turn(
        user, ", ".join(map(str, numbers)) + ".", f"I start at {numbers[0]} and stop at {numbers[-1]}.", plain=False
    )


def _neighbour(rng: random.Random, split: str) -> Turn:
    step, asks, word = (1, _NEXT, "after") if rng.random() < 0.55 else (-1, _PREVIOUS, "before")
    if rng.random() < 0.35:
        number = rng.randint(1, 100)
        key, value, noun = str(number), str(number + step), "number"
    else:
        noun = rng.choice(list(_NOUN))
        row = _NOUN[noun]
        at = rng.randrange(len(row))
        if noun == "letter":
            at = min(max(at, 1), len(row) - 2)
        key, value = row[at], row[(at + step) % len(row)]
    shown = f"the letter {key}" if noun == "letter" and rng.random() < 0.5 else key
    user = asks.ask(rng, split, key, k=shown, n=noun)
    return Turn(user, f"{value} comes {word} {key}.", f"The {noun} {word} {key} is {value}.", value)
