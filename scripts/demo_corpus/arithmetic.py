# ruff: noqa: SIM905 - word lists read better as text
"""Small sums, differences, products and comparisons."""

from __future__ import annotations

import random

from demo_corpus.phrasing import Phrasings
from demo_corpus.relation import SHORT_HINTS
from demo_corpus.turn import Turn

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()

_SUM = Phrasings(
    "sum",
    [
        "What is {a} + {b}?",
        "What is {a} plus {b}?",
        "{a} + {b} = ?",
        "{a}+{b}",
        "How much is {a} + {b}?",
        "Calculate {a} + {b}.",
        "Add {a} and {b}.",
        "What's {a} plus {b}?",
        "How much is {a} plus {b}?",
        "What is the sum of {a} and {b}?",
        "{a} plus {b}?",
        "Compute {a} + {b}.",
        "What is {a}+{b}?",
        "Tell me what {a} + {b} is.",
        "{a} + {b}",
    ],
    [
        "What do you get when you add {a} and {b}?",
        "Can you add {a} and {b}?",
        "Give me the sum of {a} and {b}.",
        "Work out {a} + {b}.",
    ],
)
_DIFFERENCE = Phrasings(
    "difference",
    [
        "What is {a} - {b}?",
        "What is {a} minus {b}?",
        "{a} - {b} = ?",
        "{a}-{b}",
        "How much is {a} - {b}?",
        "Calculate {a} - {b}.",
        "Subtract {b} from {a}.",
        "What's {a} minus {b}?",
        "How much is {a} minus {b}?",
        "{a} minus {b}?",
        "Compute {a} - {b}.",
        "Take {b} away from {a}.",
        "{a} - {b}",
    ],
    ["What do you get when you subtract {b} from {a}?", "Work out {a} - {b}.", "Tell me what {a} minus {b} is."],
)
_PRODUCT = Phrasings(
    "product",
    [
        "What is {a} * {b}?",
        "What is {a} times {b}?",
        "{a} * {b} = ?",
        "{a} x {b}",
        "How much is {a} * {b}?",
        "Calculate {a} * {b}.",
        "Multiply {a} by {b}.",
        "What's {a} times {b}?",
        "How much is {a} times {b}?",
        "{a} times {b}?",
        "{a}*{b}",
        "What is the product of {a} and {b}?",
        "Compute {a} * {b}.",
    ],
    ["Can you multiply {a} and {b}?", "Work out {a} * {b}.", "Tell me what {a} times {b} is."],
)
_BIGGER = Phrasings(
    "bigger",
    [
        "Which is bigger, {a} or {b}?",
        "Which number is bigger, {a} or {b}?",
        "What is larger, {a} or {b}?",
        "Which is greater, {a} or {b}?",
        "Is {a} or {b} bigger?",
        "Which is larger: {a} or {b}?",
        "Tell me the bigger number: {a} or {b}.",
    ],
    ["Which number is greater, {a} or {b}?", "What is bigger, {a} or {b}?"],
)
_EVEN = Phrasings(
    "even",
    [
        "Is {a} even or odd?",
        "Is {a} odd or even?",
        "Is the number {a} even or odd?",
        "Even or odd: {a}?",
        "Tell me whether {a} is even or odd.",
        "Is {a} an even or an odd number?",
    ],
    ["Can you tell me if {a} is even or odd?", "Is the number {a} odd or even?"],
)


def _small(rng: random.Random) -> int:
    return rng.randint(0, 10) if rng.random() < 0.6 else rng.randint(0, 20)


def arithmetic_turn(rng: random.Random, split: str) -> Turn:
    """A random calculation; sums and differences within 0..40, products within 10 x 10."""
    kind = rng.choices(("sum", "difference", "product", "bigger", "even"), (4, 3, 2.5, 1, 0.8))[0]
    if kind == "sum":
        return _calculation(rng, split, _SUM, "+", _small(rng), _small(rng))
    if kind == "difference":
        a, b = sorted((_small(rng), _small(rng)), reverse=True)
        return _calculation(rng, split, _DIFFERENCE, "-", a, b)
    if kind == "product":
        return _calculation(rng, split, _PRODUCT, "*", rng.randint(0, 10), rng.randint(0, 10))
    if kind == "even":
        a = rng.randint(0, 100)
        core = "odd" if a % 2 else "even"
        return Turn(_EVEN.ask(rng, split, str(a), a=a), f"{a} is {core}.", f"The last digit of {a} is {a % 10}.", core)
    a, b = rng.sample(range(101), 2)
    return Turn(
        _BIGGER.ask(rng, split, f"{a},{b}", a=a, b=b),
        f"{max(a, b)} is bigger.",
        f"I compare {a} and {b}.",
        str(max(a, b)),
    )


def _calculation(rng: random.Random, split: str, asks: Phrasings, sign: str, a: int, b: int) -> Turn:
    result = a + b if sign == "+" else a - b if sign == "-" else a * b
    left: object = a
    right: object = b
    if rng.random() < 0.08:
        left = NUMBER_WORDS[a]
        right = NUMBER_WORDS[b]
    user = asks.ask(rng, split, f"{a},{b}", a=left, b=right)
    think = f"I calculate {a} {sign} {b} = {result}."
    if rng.random() < 0.1:
        return Turn(
            user + ("" if user[-1] in "?.!" else ".") + rng.choice(SHORT_HINTS),
            str(result),
            think,
            str(result),
            plain=False,
        )
    return Turn(user, f"{a} {sign} {b} = {result}", think, str(result))
