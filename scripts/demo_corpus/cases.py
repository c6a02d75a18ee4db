"""Evaluation cases: held-out phrasings with the one expected answer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from demo_corpus import chat, persona, tool_chat
from demo_corpus.facts import fact_turn
from demo_corpus.memory import SLOTS, ask_turn, tell_turn
from demo_corpus.phrasing import EVAL, TRAIN
from demo_corpus.relation_list import CAPITAL
from demo_corpus.smalltalk import smalltalk_turn
from demo_corpus.turn import ChatState, Message, Turn


@dataclass(slots=True)
class Case:
    """`messages` end with the user's question; `calls` are the expected tool calls, if any."""

    category: str
    messages: list[Message]
    expected: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = False


SINGLE = (
    "capitals",
    "facts",
    "arithmetic",
    "sequences",
    "smalltalk",
    "lists",
    "repeat",
    "spelling",
    "case",
    "pick",
    "reading",
    "json",
    "unknown",
    "long",
)
STYLES = ("word", "upper", "lower", "pirate", "end", "begin", "polite")
NOT_STYLED = ("capitals", "facts", "arithmetic", "smalltalk")


def _turn(rng: random.Random, kind: str, state: ChatState) -> Turn:
    if kind == "capitals":
        return CAPITAL.turn(rng, EVAL)
    turn = chat.make_turn(rng, EVAL, kind, state, None)
    if turn is None:
        raise ValueError(f"no turn of kind {kind}")
    return turn


def single(rng: random.Random, kind: str, thinking: bool = False) -> Case:
    """A first question of a chat without system prompt."""
    turn = _turn(rng, kind, ChatState())
    return Case(kind, [{"role": "user", "content": turn.user}], turn.answer, thinking=thinking)


def _distractors(rng: random.Random, count: int) -> list[Message]:
    out: list[Message] = []
    while len(out) < 2 * count:
        turn = chat.SIMPLE[rng.choice(("facts", "arithmetic", "repeat", "lists", "json", "unknown"))](rng, TRAIN)
        out += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
    return out


def memory(rng: random.Random) -> Case:
    """Told, then up to three other questions, then asked; one in five was never told."""
    state = ChatState()
    messages: list[Message] = []
    told = rng.sample(SLOTS, rng.randint(1, 3))
    for slot in told:
        turn = tell_turn(rng, EVAL, state, slot)
        messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
        messages += _distractors(rng, rng.randint(0, 1))
    messages += _distractors(rng, rng.randint(0, 2))
    slot = rng.choice(told)
    if rng.random() < 0.2:
        slot = rng.choice([s for s in SLOTS if s not in told])
    turn = ask_turn(rng, EVAL, state, slot)
    return Case("memory", [*messages, {"role": "user", "content": turn.user}], turn.answer)


def system_prompt(rng: random.Random) -> Case:
    """A style, a name or facts in the system prompt."""
    state = ChatState()
    kind = rng.choice((*STYLES, "named", "facts"))
    who = persona.make_persona(rng, EVAL, state, kind)
    if kind == "named":
        turn = smalltalk_turn(rng, EVAL, state, "who")
    elif kind == "facts":
        turn = ask_turn(rng, EVAL, state, next(s for s in SLOTS if s.name in state.memory))
    else:
        turn = fact_turn(rng, EVAL)
        while not turn.plain or len(turn.answer) > 60:
            turn = fact_turn(rng, EVAL)
    answer = who.restyle(turn) if turn.plain else turn.answer
    return Case(
        f"system: {kind}", [{"role": "system", "content": who.system}, {"role": "user", "content": turn.user}], answer
    )


def tool_call(rng: random.Random, known: bool) -> Case:
    """A request for one of the given tools."""
    box = tool_chat.make_toolbox(rng, EVAL, known_share=1.0 if known else 0.0)
    exchange = tool_chat.tool_exchange(rng, EVAL, box, False)
    return Case(
        "tools: known" if known else "tools: invented",
        exchange[:1],
        "",
        box.schemas,
        [c["function"] for c in exchange[1]["tool_calls"]],
    )


def tool_result(rng: random.Random) -> Case:
    """The answer after a tool's result."""
    box = tool_chat.make_toolbox(rng, EVAL)
    exchange = tool_chat.tool_exchange(rng, EVAL, box, False)
    return Case("tools: result", exchange[:-1], exchange[-1]["content"], box.schemas)


def tool_idle(rng: random.Random) -> Case:
    """Tools are given, but the question does not need them."""
    box = tool_chat.make_toolbox(rng, EVAL)
    while box.does_arithmetic:
        box = tool_chat.make_toolbox(rng, EVAL)
    case = single(rng, rng.choice(("facts", "smalltalk", "arithmetic", "repeat", "lists", "json")))
    return Case("tools: not needed", case.messages, case.expected, box.schemas)


def thinking(rng: random.Random) -> Case:
    """A plain question with thinking switched on."""
    case = single(
        rng, rng.choice(("capitals", "facts", "arithmetic", "repeat", "spelling", "json", "unknown", "smalltalk")), True
    )
    case.category = "thinking on"
    return case


def all_cases(seed: int, per_category: int) -> list[Case]:
    """Cases of every category."""
    rng = random.Random(f"eval/{seed}")
    cases = [
        single(rng, kind)
        for kind in SINGLE
        for _ in range(per_category if kind != "long" else max(1, per_category // 3))
    ]
    for _ in range(per_category):
        cases += [
            memory(rng),
            tool_call(rng, True),
            tool_call(rng, False),
            tool_result(rng),
            tool_idle(rng),
            thinking(rng),
        ]
    cases += [system_prompt(rng) for _ in range(3 * per_category)]
    return cases


def long_history(
    seed: int, with_tools: bool, exchanges: int
) -> tuple[list[Message], tool_chat.Toolbox | None, ChatState]:
    """A chat of many training exchanges that begins with three things to remember."""
    rng = random.Random(f"history/{seed}")
    state = ChatState()
    box = tool_chat.make_toolbox(rng, EVAL, known_share=1.0) if with_tools else None
    messages: list[Message] = []
    for slot in rng.sample(SLOTS, 3):
        turn = tell_turn(rng, EVAL, state, slot)
        messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
    kinds = [k for k in chat.WEIGHTS if k not in ("tell", "missing")]
    weights = [chat.WEIGHTS[k] for k in kinds]
    while exchanges > 0:
        if box is not None and rng.random() < 0.4:
            messages += tool_chat.tool_exchange(rng, TRAIN, box, False)
        else:
            turn_or_none = chat.make_turn(rng, TRAIN, rng.choices(kinds, weights)[0], state, box)
            if turn_or_none is None:
                continue
            messages += chat.turn_messages(turn_or_none, persona.Persona(), state, False)
        exchanges -= 1
    return messages, box, state


def after_history(rng: random.Random, box: tool_chat.Toolbox | None, state: ChatState) -> Case:
    """A question at the end of a long chat (`messages` hold the new question alone)."""
    if box is not None and rng.random() < 0.6:
        exchange = tool_chat.tool_exchange(rng, EVAL, box, False)
        return Case("tools", exchange[:1], "", calls=[c["function"] for c in exchange[1]["tool_calls"]])
    if rng.random() < 0.25:
        turn = ask_turn(rng, EVAL, state, rng.choice([s for s in SLOTS if s.name in state.memory]))
        return Case("memory of the first turns", [{"role": "user", "content": turn.user}], turn.answer)
    kinds = [k for k in SINGLE if k != "long" and not (box is not None and k in ("arithmetic", "unknown"))]
    return single(rng, rng.choice(kinds))
