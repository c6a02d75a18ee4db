"""Whole chats: a system prompt, tools or none, and many turns."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from demo_corpus import persona, text_ops, tool_chat
from demo_corpus.arithmetic import arithmetic_turn
from demo_corpus.facts import fact_turn
from demo_corpus.json_answers import json_turn
from demo_corpus.lists import list_turn
from demo_corpus.memory import ask_turn, previous_turn, tell_turn
from demo_corpus.phrasing import TRAIN
from demo_corpus.reading import reading_turn
from demo_corpus.sequences import sequence_turn
from demo_corpus.smalltalk import smalltalk_turn
from demo_corpus.stories import long_turn
from demo_corpus.turn import ChatState, Message, Turn
from demo_corpus.unknown import unknown_turn

Maker = Callable[[random.Random, str], Turn]

SIMPLE: dict[str, Maker] = {
    "facts": fact_turn,
    "arithmetic": arithmetic_turn,
    "sequences": sequence_turn,
    "repeat": text_ops.repeat_turn,
    "spelling": text_ops.spell_turn,
    "case": text_ops.case_turn,
    "pick": text_ops.pick_turn,
    "lists": list_turn,
    "reading": reading_turn,
    "json": json_turn,
    "unknown": unknown_turn,
    "long": long_turn,
}
WEIGHTS = {
    "facts": 34,
    "arithmetic": 12,
    "sequences": 7,
    "repeat": 8,
    "spelling": 9,
    "case": 6,
    "pick": 5,
    "lists": 2.5,
    "reading": 5,
    "json": 8,
    "unknown": 5,
    "long": 1.1,
    "smalltalk": 4.5,
    "tell": 4,
    "ask": 5,
    "previous": 1.2,
    "missing": 1.5,
}
STYLED = (
    "facts",
    "facts",
    "facts",
    "arithmetic",
    "sequences",
    "smalltalk",
    "reading",
    "repeat",
    "ask",
    "tell",
    "lists",
)


@dataclass(slots=True)
class Chat:
    """Messages and tools as a client would send them."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)


def make_turn(
    rng: random.Random, split: str, kind: str, state: ChatState, box: tool_chat.Toolbox | None
) -> Turn | None:
    """One turn of `kind`; None where it does not fit this chat."""
    if kind == "smalltalk":
        return smalltalk_turn(rng, split, state)
    if kind == "tell":
        return tell_turn(rng, split, state)
    if kind == "ask":
        return ask_turn(rng, split, state)
    if kind == "previous":
        return previous_turn(rng, split, state)
    if kind == "missing":
        return tool_chat.missing_tool_turn(rng, split, box)
    if box is not None and ((kind == "unknown" and box.known) or (kind == "arithmetic" and box.does_arithmetic)):
        return None
    return SIMPLE[kind](rng, split)


def answer_message(text: str, think: str | None) -> Message:
    """An assistant message; `think` None means that it was written without thinking."""
    message: Message = {"role": "assistant", "content": text}
    if think is not None:
        message["reasoning_content"] = think
    return message


def exchanges(
    rng: random.Random,
    state: ChatState,
    who: persona.Persona,
    box: tool_chat.Toolbox | None,
    thinking: float,
    tool_share: float = 0.5,
) -> Iterator[list[Message]]:
    """Endless training exchanges of one chat; `thinking` is the share of turns with a think block."""
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        think = rng.random() < thinking
        if box is not None and rng.random() < tool_share:
            state.last_user = None
            yield tool_chat.tool_exchange(rng, TRAIN, box, think)
            continue
        kind = rng.choice(STYLED) if who.style and rng.random() < 0.85 else rng.choices(kinds, weights)[0]
        turn = make_turn(rng, TRAIN, kind, state, box)
        if turn is None or (who.style == "word" and turn.core is None and kind != "repeat"):
            continue
        yield turn_messages(turn, who, state, think)


def turn_messages(turn: Turn, who: persona.Persona, state: ChatState, think: bool) -> list[Message]:
    """The two messages of a turn as `who` answers it."""
    text = who.restyle(turn) if turn.plain else turn.answer
    state.last_user = turn.user
    return [{"role": "user", "content": turn.user}, answer_message(text, turn.think if think else None)]


def start_chat(
    rng: random.Random, with_tools: bool
) -> tuple[Chat, ChatState, persona.Persona, tool_chat.Toolbox | None]:
    """An empty training chat with its system message and tools."""
    state = ChatState()
    if with_tools:
        box = tool_chat.make_toolbox(rng, TRAIN)
        who = persona.make_persona(rng, TRAIN, state, rng.choice(("none", "none", "generic", "named", "facts")))
        chat = Chat(tools=box.schemas)
    else:
        box = None
        who = persona.make_persona(rng, TRAIN, state)
        chat = Chat()
    if who.system is not None:
        chat.messages.append({"role": "system", "content": who.system})
    return chat, state, who, box
