# ruff: noqa: SIM905 - word lists read better as text
"""Answers in JSON."""

from __future__ import annotations

import json
import random

from demo_corpus import lists, words
from demo_corpus.phrasing import Phrasings
from demo_corpus.relation_list import CAPITAL, RELATIONS
from demo_corpus.turn import Turn

_FACT = Phrasings(
    "json_fact",
    [
        "Give the {b} of {k} as JSON with keys {x} and {y}.",
        "Give me the {b} of {k} as JSON with the keys {x} and {y}.",
        "Answer in JSON with keys {x} and {y}: what is the {b} of {k}?",
        "What is the {b} of {k}? Answer in JSON with keys {x} and {y}.",
        "What is the {b} of {k}? Reply as JSON with keys {x} and {y}.",
        "Return JSON with keys {x} and {y} for the {b} of {k}.",
        "Return a JSON object with {x} and {y} for the {b} of {k}.",
        "the {b} of {k} in json, keys {x} and {y}",
        "Write the {b} of {k} as a JSON object with the keys {x} and {y}.",
        "JSON with keys {x} and {y}: the {b} of {k}.",
        "Tell me the {b} of {k} as JSON. Use the keys {x} and {y}.",
    ],
    [
        "Please answer in JSON using the keys {x} and {y}: the {b} of {k}.",
        "I need the {b} of {k} as JSON with keys {x} and {y}.",
        "What is the {b} of {k}? Use JSON with the keys {x} and {y}.",
    ],
)
_ONE = Phrasings(
    "json_one",
    [
        "Give the {b} of {k} as JSON with key {y}.",
        "What is the {b} of {k}? Answer in JSON with the key {y}.",
        "Return JSON with the key {y} for the {b} of {k}.",
        "Answer in JSON with key {y}: what is the {b} of {k}?",
        "What is the {b} of {k}? Reply as JSON with the key {y}.",
    ],
    ["I need the {b} of {k} as JSON with the key {y}.", "Give me the {b} of {k} in JSON with only the key {y}."],
)
_BARE = Phrasings(
    "json_bare",
    [
        "Give the {b} of {k} as JSON.",
        "What is the {b} of {k}? Answer in JSON.",
        "Return the {b} of {k} as JSON.",
        "Answer in JSON: what is the {b} of {k}?",
        "What is the {b} of {k}? Reply in JSON.",
        "the {b} of {k} as json please",
    ],
    ["I need the {b} of {k} as JSON.", "What is the {b} of {k}? JSON only."],
)
_OBJECT = Phrasings(
    "json_object",
    [
        "Make a JSON object with {p}.",
        "Write JSON with {p}.",
        "Return a JSON object with {p}.",
        "Create a JSON object: {p}.",
        "Give me JSON with {p}.",
        "Put this in JSON: {p}",
        "Turn this into JSON: {p}",
        "Convert to JSON: {p}",
    ],
    ["Write a JSON object with {p}.", "I need a JSON object with {p}.", "Format as JSON: {p}"],
)
_LIST = Phrasings(
    "json_list",
    [
        "List {n} {k} as a JSON array.",
        "Give me {n} {k} as a JSON list.",
        "Return a JSON array of {n} {k}.",
        "{n} {k} as JSON.",
        "Name {n} {k}. Answer as a JSON list.",
        "Write {n} {k} as a JSON array.",
    ],
    ["I need {n} {k} as a JSON array.", "Give a JSON list of {n} {k}."],
)
_KEYS = """answer result value name place item a b x y first second key id title text output data subject country_name
capital_city town nation city animal_name color_name english info question kind""".split()
_TOPICS = [
    r
    for r in RELATIONS
    if r.topic
    and r.name
    in ("capital", "continent", "language", "colour", "opposite", "plural", "young", "sound", "symbol", "author")
]


def json_turn(rng: random.Random, split: str) -> Turn:
    """A fact, given pairs or a list, as one line of JSON."""
    roll = rng.random()
    if roll < 0.55:
        return _fact(rng, split)
    if roll < 0.85:
        return _given(rng, split)
    kind = rng.choice(list(lists.ITEMS))
    count = rng.randint(2, 5)
    user = _LIST.ask(rng, split, f"{kind},{count}", n=rng.choice(lists.COUNTS[count]), k=kind)
    return Turn(user, json.dumps(lists.ITEMS[kind][:count]), f"I write {count} {kind} as a JSON array.", plain=False)


def _fact(rng: random.Random, split: str) -> Turn:
    relation = CAPITAL if rng.random() < 0.4 else rng.choice(_TOPICS)
    key = rng.choice(list(relation.rows))
    value = relation.rows[key]
    if relation.topic is None:
        raise ValueError(f"relation {relation.name} has no JSON keys")
    first, second = relation.topic
    topic = {"young": "young one", "opposite": "opposite", "past": "past tense"}.get(second, second)
    bare = key.removeprefix("the ").removeprefix("a ").removeprefix("an ")
    roll = rng.random()
    if roll < 0.15:
        user = _BARE.ask(rng, split, key, b=topic, k=key)
    else:
        swapped = roll > 0.8
        if not swapped and rng.random() < 0.5:
            first, second = rng.sample(_KEYS, 2) if rng.random() < 0.8 else (words.coined(rng), words.coined(rng))
        if roll < 0.3:
            user = _ONE.ask(rng, split, key, b=topic, k=key, y=second)
            return Turn(user, json.dumps({second: value}), f"The {topic} of {key} is {value}.", plain=False)
        shown = (second, first) if swapped else (first, second)
        left, right = (f'"{name}"' for name in shown) if rng.random() < 0.3 else shown
        user = _FACT.ask(rng, split, key, b=topic, k=key, x=left, y=right)
        if swapped:
            # Named after what they hold, so the values follow the names, not the order.
            return Turn(
                user, json.dumps({second: value, first: bare}), f"The {topic} of {key} is {value}.", plain=False
            )
    return Turn(user, json.dumps({first: bare, second: value}), f"The {topic} of {key} is {value}.", plain=False)


def _given(rng: random.Random, split: str) -> Turn:
    pairs: dict[str, str | int] = {}
    makers = {
        "name": words.person,
        "city": words.place,
        "job": lambda r: r.choice(words.JOBS),
        "colour": lambda r: r.choice(words.COLORS),
        "age": lambda r: r.randint(5, 99),
        "count": lambda r: r.randint(1, 500),
        "animal": lambda r: r.choice(words.PETS),
        "food": lambda r: r.choice(words.FOODS),
        "code": lambda r: "k" + words.code(r),
        "day": lambda r: r.choice(words.WEEKDAYS),
        "price": lambda r: r.randint(1, 999),
        "word": words.any_word,
    }
    for key in rng.sample(list(makers), rng.randint(1, 3)):
        pairs[key if rng.random() < 0.8 else words.coined(rng)] = makers[key](rng)
    shape = rng.choice(("{} {}", "{} {}", "{}: {}", "{} = {}", "{} is {}"))
    items = [shape.format(k, v) for k, v in pairs.items()]
    text = items[0] if len(items) == 1 else ", ".join(items[:-1]) + rng.choice((" and ", ", ")) + items[-1]
    return Turn(_OBJECT.ask(rng, split, "", p=text), json.dumps(pairs), "I write the given pairs as JSON.", plain=False)
