"""Tools in the OpenAI format, known ones and made-up ones, with requests that fit them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo_corpus import words

Value = str | int | bool
Maker = Callable[[random.Random], Value]


@dataclass(frozen=True, slots=True)
class Argument:
    """`says` are ways to mention the value in a request ({v}, and {n}: the name in words)."""

    name: str
    kind: str
    description: str
    make: Maker
    says: tuple[str, ...]
    choices: tuple[str, ...] = ()
    required: bool = True

    def schema(self, rng: random.Random) -> dict[str, Any]:
        """The JSON schema of this argument; the description is sometimes left out."""
        out: dict[str, Any] = {"type": self.kind}
        if rng.random() < 0.7:
            out["description"] = self.description
        if self.choices:
            out["enum"] = list(self.choices)
        return out


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool and the wordings of a request for it; {name} stands for how an argument is mentioned."""

    name: str
    description: str
    arguments: tuple[Argument, ...]
    requests: tuple[str, ...]
    held: tuple[str, ...] = ()
    result: str = "generic"

    def schema(self, rng: random.Random) -> dict[str, Any]:
        """The tool as a client sends it."""
        properties = {a.name: a.schema(rng) for a in self.arguments}
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        required = [a.name for a in self.arguments if a.required]
        if required and rng.random() < 0.85:
            parameters["required"] = required
        if rng.random() < 0.15:
            parameters["additionalProperties"] = False
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        if rng.random() < 0.1:
            del function["description"]
        return {"type": "function", "function": function}


def _topic(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.4:
        return f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}s"
    if roll < 0.7:
        return " ".join(words.any_word(rng) for _ in range(rng.randint(1, 3)))
    return rng.choice(words.NOUNS) + "s"


def _choice(*options: str) -> Maker:
    return lambda rng: rng.choice(options)


UNITS = ("celsius", "fahrenheit")
ARGUMENTS: dict[str, tuple[str, str, Maker, tuple[str, ...], tuple[str, ...]]] = {
    # name: (type, description, maker, mentions, choices)
    "city": ("string", "The name of the city", words.place, ("in {v}", "for {v}"), ()),
    "location": ("string", "The place", words.place, ("in {v}", "for {v}", "at {v}"), ()),
    "person": ("string", "The name of the person", words.person, ("for {v}", "of {v}"), ()),
    "name": ("string", "The name", words.person, ("for {v}", "with the name {v}", "named {v}"), ()),
    "recipient": ("string", "Who gets it", words.person, ("to {v}",), ()),
    "day": ("string", "The day", lambda r: r.choice(words.WEEKDAYS), ("on {v}",), ()),
    "order_id": ("string", "The id of the order", words.code, ("with id {v}", "number {v}", "{v}"), ()),
    "id": ("string", "The id", words.code, ("with the id {v}", "with id {v}", "{v}"), ()),
    "code": ("string", "The code", words.code, ("with code {v}", "with the code {v}"), ()),
    "color": ("string", "The color", lambda r: r.choice(words.COLORS), ("in {v}", "with color {v}"), ()),
    "count": ("integer", "How many", lambda r: r.randint(2, 50), ("with count {v}", "{v} times"), ()),
    "limit": (
        "integer",
        "The maximum number of results",
        lambda r: r.randint(1, 50),
        ("with a limit of {v}", "limit {v}"),
        (),
    ),
    "days": ("integer", "The number of days", lambda r: r.randint(1, 14), ("for {v} days",), ()),
    "amount": ("number", "The amount", lambda r: r.randint(1, 999), ("with amount {v}", "for {v} euros"), ()),
    "query": ("string", "What to search for", _topic, ("for {v}", "about {v}"), ()),
    "topic": ("string", "The topic", _topic, ("about {v}", "on {v}"), ()),
    "unit": ("string", "The unit", _choice(*UNITS), ("in {v}",), UNITS),
    "size": (
        "string",
        "The size",
        _choice("small", "medium", "large"),
        ("in size {v}", "in {v}"),
        ("small", "medium", "large"),
    ),
    "priority": (
        "string",
        "The priority",
        _choice("low", "normal", "high"),
        ("with {v} priority",),
        ("low", "normal", "high"),
    ),
    "time": (
        "string",
        "The time",
        lambda r: f"{r.randint(0, 23):02d}:{r.choice(('00', '15', '30', '45'))}",
        ("at {v}",),
        (),
    ),
}


def argument(name: str, required: bool = True, rename: str | None = None) -> Argument:
    """An argument of the table above, under its own or another name."""
    kind, description, make, says, choices = ARGUMENTS[name]
    return Argument(rename or name, kind, description, make, says, choices, required)


def raw(
    name: str, kind: str, description: str, make: Maker, required: bool = True, choices: tuple[str, ...] = ()
) -> Argument:
    """An argument whose value stands in the request as it is."""
    return Argument(name, kind, description, make, ("{v}",), choices, required)


def _invented_argument(rng: random.Random) -> Argument:
    name = rng.choice(words.NOUNS) if rng.random() < 0.5 else words.coined(rng)
    if rng.random() < 0.25:
        name += "_" + rng.choice(("id", "name", "code", "type", "key", "value"))
    spoken = name.replace("_", " ")
    says = (
        f"with {spoken} {{v}}",
        f"with the {spoken} {{v}}",
        f"{spoken} {{v}}",
        f"where {spoken} is {{v}}",
        f"and use {{v}} as {spoken}",
    )
    if rng.random() < 0.35:
        return Argument(name, "integer", f"The {spoken}", lambda r: r.randint(1, 999), says)
    return Argument(name, "string", f"The {spoken}", words.any_word, says)


_VERBS = {
    "get": ("get", "show me", "give me", "I need"),
    "find": ("find", "look for", "search for"),
    "check": ("check", "look at"),
    "create": ("create", "make", "add"),
    "delete": ("delete", "remove"),
    "book": ("book", "reserve"),
    "send": ("send",),
    "open": ("open",),
    "start": ("start",),
    "stop": ("stop",),
    "list": ("list", "show"),
    "update": ("update", "change"),
    "order": ("order", "buy"),
    "fetch": ("fetch", "get"),
    "track": ("track", "follow"),
    "play": ("play",),
    "print": ("print",),
}
_HELD_LEADS = ("could you {v} the {n}", "I want you to {v} the {n}", "go and {v} the {n}")
_LEADS = (
    "{v} the {n}",
    "{v} a {n}",
    "please {v} the {n}",
    "can you {v} the {n}",
    "I want to {v} the {n}",
    "{v} {n}",
    "{v} my {n}",
)


def invented_tool(rng: random.Random, split: str) -> Tool:
    """A tool with a made-up or composed name, one to three arguments, and requests that mention them all."""
    verb = rng.choice(list(_VERBS))
    noun = rng.choice(words.NOUNS) if rng.random() < 0.7 else words.coined(rng)
    if rng.random() < 0.25:
        noun = f"{rng.choice(words.NOUNS)}_{rng.choice(('info', 'status', 'list', 'price', 'report', 'data', 'name'))}"
    parts = [verb, *noun.split("_")]
    style = rng.random()
    if style < 0.75:
        name = "_".join(parts)
    elif style < 0.9:
        name = parts[0] + "".join(p.capitalize() for p in parts[1:])
    else:
        name = "-".join(parts)
    arguments: dict[str, Argument] = {}
    for _ in range(rng.choices((0, 1, 2, 3), (0.7, 5, 3, 1))[0]):
        made = argument(rng.choice(list(ARGUMENTS))) if rng.random() < 0.6 else _invented_argument(rng)
        arguments[made.name] = made
    spoken = noun.replace("_", " ")
    leads = _HELD_LEADS if split == "eval" else _LEADS
    requests = tuple(
        lead.format(v=rng.choice(_VERBS[verb]) if "I need" not in lead else verb, n=spoken) for lead in leads
    )
    requests = tuple(
        " ".join([r.replace("the I need", "I need"), *("{" + a + "}" for a in arguments)]) for r in requests
    )
    if rng.random() < 0.15 and split != "eval":
        requests = (
            f"use {name} " + " ".join("{" + a + "}" for a in arguments),
            f"call {name} " + " ".join("{" + a + "}" for a in arguments),
        )
    description = rng.choice(
        (f"{verb.capitalize()} the {spoken}", f"{verb.capitalize()} a {spoken}.", f"{verb.capitalize()}s the {spoken}")
    )
    return Tool(name, description, tuple(arguments.values()), requests)
