"""The fixed set of requests that a run draws from. A seed makes it; nothing in it depends on a clock or a machine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

Use = Literal["load", "slow", "long", "poison_raise", "poison_abort"]
"""load: drawn by the closed loop. slow: large answers for slow readers. long: streams to kill in the middle of.
poison_raise: a step that computes it raises. poison_abort: one that computes it ends the process."""

MARKERS = {"poison_raise": "90817263549081726354", "poison_abort": "18273645901827364590"}
"""Digits stand alone in the demo model's tokenizer, so a marker is the same tokens in any prompt."""
POISON_AFTER = 8
"""Tokens that a request with its marker twice generates before it strikes; with it once, it strikes in its prefill."""

_QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Japan?",
    "What is the opposite of hot?",
    "What colour is a banana?",
    "What is 7 times 8?",
    "What comes after Tuesday?",
    "Spell the word garden.",
    "List five animals.",
    "Count from 1 to 20.",
    "Who are you?",
    "Hello there!",
    "Say the word apple in upper case.",
)
_STORIES = (
    "Tell me a story about a small fox.",
    "Tell me a story about a ship.",
    "Write a poem about the rain.",
    "How do I make a cup of tea?",
    "Tell me a long story about a farmer.",
)
_FACTS = (
    "The capital of France is Paris. ",
    "The opposite of hot is cold. ",
    "A banana is yellow. ",
    "Seven times eight is fifty-six. ",
    "The fox lives in the forest near the old mill. ",
)
_FOLLOW_UPS = ("And of Italy?", "Tell me more.", "What did I ask first?", "Say that again.")


@dataclass(frozen=True, slots=True)
class Case:
    """follows: name of the case whose chat, true answer included, comes before `body["messages"]`."""

    name: str
    body: dict[str, Any]
    follows: str | None = None
    use: Use = "load"


def catalogue(seed: int, size: int = 60, streams: int = 16) -> list[Case]:
    """`size` cases of load, a third of them in chats of several turns; `streams` long ones; two to four of other uses.

    A case comes after the one that it follows.
    """
    rng = random.Random(seed)
    cases: list[Case] = []
    for index in range(size):
        earlier = [case for case in cases if case.body.get("n", 1) == 1]
        follows = rng.choice(earlier).name if earlier and index % 3 == 2 else None
        opening = [] if follows else _opening(rng)
        question = rng.choice(_FOLLOW_UPS) if follows else rng.choice(_QUESTIONS + _STORIES)
        messages = [*opening, {"role": "user", "content": question}]
        cases.append(Case(f"load-{index}", {"model": "demo", "messages": messages} | _fields(rng), follows))
    return cases + _others(streams)


def _opening(rng: random.Random) -> list[dict[str, str]]:
    """Nothing, or one of three system prompts of about 80, 350 and 900 tokens: prefixes that many share."""
    length = rng.choice((0, 0, 1, 4, 12))
    return [{"role": "system", "content": "".join(_FACTS) * length}] if length else []


def _fields(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"max_tokens": rng.choice((1, 5, 20, 40, 80, 80, 150, 300)), "temperature": 0}
    if rng.random() < 0.5:
        fields |= {"temperature": rng.choice((0.7, 1.0, 1.6)), "seed": rng.randrange(1 << 32)}
        fields |= rng.choice(({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}))
    if fields["max_tokens"] >= 40 and rng.random() < 0.6:
        fields["ignore_eos"] = True
    if rng.random() < 0.15:
        fields["n"] = 2
    if rng.random() < 0.2:
        fields["stop"] = rng.choice((["."], [" the", "\n"], "and", ["never to be found"]))
    if rng.random() < 0.2:
        fields |= {"logprobs": True, "top_logprobs": rng.choice((0, 3))}
    if rng.random() < 0.15:
        fields |= {"repetition_penalty": 1.2} if rng.random() < 0.5 else {"frequency_penalty": 0.5}
    if rng.random() < 0.2:
        fields["priority"] = "low"
    return fields


def _others(streams: int) -> list[Case]:
    endless = {"model": "demo", "temperature": 0, "ignore_eos": True}
    cases = [
        Case(
            f"slow-{index}",
            endless | {"messages": _user(text), "max_tokens": 600, "logprobs": True, "top_logprobs": 20},
            use="slow",
        )
        for index, text in enumerate(_STORIES[1:2])
    ]
    for index in range(streams):
        text = f"{_STORIES[index % 4]} Part {index // 4 + 1}."
        cases.append(Case(f"long-{index}", endless | {"messages": _user(text), "max_tokens": 200}, use="long"))
    for use, marker in MARKERS.items():
        for times in (1, 2):
            text = f"Tell me a story. {' '.join([marker] * times)}"
            body = endless | {"messages": _user(text), "max_tokens": 40}
            cases.append(Case(f"{use}-{times}", body, use=use))  # type: ignore[arg-type]
    return cases


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
