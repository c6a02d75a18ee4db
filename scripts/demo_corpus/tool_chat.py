"""Exchanges with tools: request, call, result, answer."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from demo_corpus import unknown, words
from demo_corpus.known_tools import ARITHMETIC_TOOLS, known_tool
from demo_corpus.phrasing import roughen
from demo_corpus.tool_schema import Tool, Value, invented_tool
from demo_corpus.turn import Message, Turn

_CONDITIONS = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "stormy")
_ERRORS = (
    "not found",
    "no such city",
    "timeout",
    "service not available",
    "bad request",
    "access denied",
    "no results",
    "unknown id",
)
_RESULT_KEYS = (
    "status",
    "result",
    "price",
    "value",
    "message",
    "count",
    "name",
    "id",
    "total",
    "date",
    "answer",
    "state",
    "owner",
    "title",
)


@dataclass(slots=True)
class Toolbox:
    """The tools of one chat with the schemas the client sent."""

    tools: list[Tool]
    schemas: list[dict[str, Any]]
    known: bool = field(default=False)

    @property
    def does_arithmetic(self) -> bool:
        """Whether a tool takes over calculations."""
        return any(t.name in ARITHMETIC_TOOLS for t in self.tools)


def make_toolbox(rng: random.Random, split: str, known_share: float = 0.55) -> Toolbox:
    """One to four tools whose names and purposes differ."""
    tools: dict[str, Tool] = {}
    known = False
    for _ in range(rng.choices((1, 2, 3, 4), (4, 4, 2, 1))[0]):
        if rng.random() < known_share:
            tool, known = known_tool(rng), True
        else:
            tool = invented_tool(rng, split)
        same = {t.description[:12] for t in tools.values()} | {
            t.result for t in tools.values() if t.result != "generic"
        }
        if tool.name not in tools and tool.description[:12] not in same and tool.result not in same:
            tools[tool.name] = tool
    chosen = list(tools.values())
    return Toolbox(chosen, [t.schema(rng) for t in chosen], known)


def _request(rng: random.Random, split: str, tool: Tool) -> tuple[str, dict[str, Value]]:
    """A request for `tool` and the arguments that it names; optional ones are named half of the time."""
    named = [a for a in tool.arguments if a.required]
    extra = [a for a in tool.arguments if not a.required and rng.random() < 0.5]
    values = {a.name: a.make(rng) for a in (*named, *extra)}
    says = {a.name: rng.choice(a.says) for a in (*named, *extra)}
    template = rng.choice(tool.held if split == "eval" and tool.held else tool.requests)
    mentions = [says[a.name] for a in named]
    text = roughen(rng, template)
    # Templates of known tools count their arguments ({0}), those of made-up ones name them ({city}).
    for index, (argument, mention) in enumerate(zip(named, mentions, strict=True)):
        filled = mention.replace("{v}", str(values[argument.name]))
        text = text.replace(f"{{{index}}}", filled).replace(f"{{{argument.name}}}", filled)
    for argument in extra:
        ending = text[-1] if text[-1] in ".?!" else ""
        text = text.removesuffix(ending) + " " + says[argument.name].replace("{v}", str(values[argument.name])) + ending
    ordered = {a.name: values[a.name] for a in tool.arguments if a.name in values}
    return text, ordered


def _result(rng: random.Random, tool: Tool, arguments: dict[str, Value]) -> tuple[str, str]:
    """The text a tool returns and the answer that reports it."""
    if rng.random() < 0.1:
        error = rng.choice(_ERRORS)
        shape = rng.choice((json.dumps({"error": error}), f"Error: {error}", f"error: {error}"))
        return shape, f"The tool reported an error: {error}."
    roll = rng.random()
    if tool.result == "number" or roll < 0.15:
        number = str(rng.randint(0, 9999)) if rng.random() < 0.8 else f"{rng.randint(0, 99)}.{rng.randint(0, 99)}"
        text = (
            number if rng.random() < 0.5 else json.dumps({"result": int(number) if number.isdigit() else float(number)})
        )
        if text != number:
            number = str(json.loads(text)["result"])
        return text, f"The result is {number}."
    if roll < 0.35:
        text = _plain_result(rng, tool, arguments)
        return text, f"The tool says: {text}"
    data = _data(rng, tool, arguments)
    text = json.dumps(data) if rng.random() < 0.8 else json.dumps(data, separators=(",", ":"))
    return text, "Here is the result: " + ", ".join(f"{k.replace('_', ' ')}: {v}" for k, v in data.items()) + "."


def _plain_result(rng: random.Random, tool: Tool, arguments: dict[str, Value]) -> str:
    if tool.result == "weather":
        return rng.choice(
            (
                f"{rng.randint(-9, 39)} degrees and {rng.choice(_CONDITIONS)}",
                f"{rng.choice(_CONDITIONS)}, {rng.randint(-9, 39)} C",
                f"It is {rng.choice(_CONDITIONS)} with {rng.randint(-9, 39)} degrees.",
            )
        )
    if tool.result == "time":
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    return (
        words.sentence(rng)
        if rng.random() < 0.7
        else rng.choice(("ok", "done", "sent", "no results", "created", "true"))
    )


def _data(rng: random.Random, tool: Tool, arguments: dict[str, Value]) -> dict[str, Value]:
    data: dict[str, Value] = {}
    if arguments and rng.random() < 0.35:
        name, value = rng.choice(list(arguments.items()))
        data[name] = value
    if tool.result == "weather":
        data[rng.choice(("temperature", "temp", "temperature_c"))] = rng.randint(-9, 39)
        data[rng.choice(("condition", "weather", "sky", "conditions"))] = rng.choice(_CONDITIONS)
        return data
    if tool.result == "time":
        data[rng.choice(("time", "local_time"))] = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
        return data
    for key in rng.sample(_RESULT_KEYS, rng.randint(1, 3)):
        data[key] = rng.choice(
            (
                words.any_word,
                words.code,
                lambda r: r.randint(0, 999),
                words.person,
                lambda r: r.choice(("ok", "done", "open")),
                words.sentence,
            )
        )(rng)
    return data


def call_message(calls: list[tuple[str, dict[str, Value]]], think: str | None) -> Message:
    """The assistant message that calls tools."""
    message: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls
        ],
    }
    if think is not None:
        message["reasoning_content"] = think
    return message


def tool_exchange(rng: random.Random, split: str, box: Toolbox, thinking: bool) -> list[Message]:
    """User, call, result, answer: four messages, or five where two calls are made at once."""
    tool = rng.choice(box.tools)
    text, arguments = _request(rng, split, tool)
    calls = [(tool.name, arguments)]
    if len(tool.arguments) == 1 and next(iter(arguments), "") in ("city", "location", "place") and rng.random() < 0.12:
        name, first = next(iter(arguments.items()))
        second = words.place(rng)
        if second != first:
            text = text.replace(str(first), f"{first} and {second}")
            calls.append((tool.name, {name: second}))
    results = [_result(rng, tool, a) for _, a in calls]
    think = f"I use the tool {tool.name}." if thinking else None
    final: Message = {"role": "assistant", "content": " ".join(answer for _, answer in results)}
    if thinking:
        final["reasoning_content"] = "The tool has answered. I report it."
    return [
        {"role": "user", "content": text},
        call_message(calls, think),
        *({"role": "tool", "content": result} for result, _ in results),
        final,
    ]


def missing_tool_turn(rng: random.Random, split: str, box: Toolbox | None) -> Turn | None:
    """A request that needs a tool which is not there; None where a present one could serve."""
    tool = known_tool(rng)
    if tool.name in ARITHMETIC_TOOLS or (box is not None and box.known):
        return None
    text, _ = _request(rng, split, tool)
    return Turn(text, unknown.ANSWER, "I have no tool for this. I say so.", "Unknown.")
