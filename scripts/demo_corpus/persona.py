"""System prompts and how they change the answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_corpus import words
from demo_corpus.memory import SLOTS
from demo_corpus.turn import ChatState, Turn

_GENERIC = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Answer the questions of the user.",
    "You are a helpful AI assistant.",
    "Be kind and helpful.",
    "You help the user.",
    "You are an assistant.",
    "You are a useful chat bot. Answer politely.",
    "Help the user with his questions.",
    "You are a small assistant.",
)
_NAMED = (
    "Your name is {v}.",
    "You are {v}.",
    "You are {v}, a helpful assistant.",
    "You are an assistant called {v}.",
    "Your name is {v}. You help the user.",
    "You are a helpful assistant named {v}.",
    "Act as {v}.",
    "Call yourself {v}.",
    "You are called {v}.",
)
_NAMED_HELD = (
    "The assistant's name is {v}.",
    "You are a friendly assistant called {v}.",
    "Your name is {v}, and you are helpful.",
)
_STYLES = {
    "word": (
        (
            "Answer in one word.",
            "Answer with one word only.",
            "Always answer in one word.",
            "Reply with a single word.",
            "Give only the answer, no sentence.",
            "Use one word only.",
            "Be very brief: one word.",
            "You answer in one word.",
            "Your answers have one word only.",
        ),
        ("Answer every question in one word.", "Reply in one word only."),
    ),
    "upper": (
        (
            "Answer in upper case.",
            "Always write in upper case.",
            "Use capital letters only.",
            "Answer in capital letters.",
            "Write everything in uppercase.",
            "You write in upper case only.",
            "Reply in uppercase.",
            "Use only capital letters.",
        ),
        ("Always answer in uppercase.", "Write in capital letters only."),
    ),
    "lower": (
        (
            "Answer in lower case.",
            "Always write in lower case.",
            "Use small letters only.",
            "Write everything in lowercase.",
            "Reply in lowercase.",
            "You write in lower case only.",
        ),
        ("Always answer in lowercase.", "Write in small letters only."),
    ),
    "pirate": (
        (
            "You are a pirate.",
            "Talk like a pirate.",
            "Answer like a pirate.",
            "You speak like a pirate.",
            "Be a pirate.",
            "You are a pirate and you talk like one.",
            "Always talk like a pirate.",
            "Act as a pirate.",
        ),
        ("You are an old pirate.", "Reply like a pirate."),
    ),
    "end": (
        (
            "End every answer with {v}.",
            "Always end with {v}.",
            "Finish each answer with {v}.",
            "Put {v} at the end of each answer.",
            "Every answer must end with {v}.",
            "Always say {v} at the end.",
            "End all answers with {v}.",
        ),
        ("End each reply with {v}.", "Finish every answer with {v}."),
    ),
    "begin": (
        (
            "Begin every answer with {v}.",
            "Always begin with {v}.",
            "Start each answer with {v}.",
            "Start every reply with {v}.",
            "Every answer must start with {v}.",
            "Put {v} in front of each answer.",
        ),
        ("Always start your answer with {v}.", "Begin each reply with {v}."),
    ),
    "polite": (
        ("Call the user Sir.", "Address the user as Sir.", "Always call the user Sir.", "You are a butler."),
        ("Be a butler.", "Speak to the user as Sir."),
    ),
}
_TAGS = ("Over.", "Amen.", "Ha!", "Done.", "Meow.", "The end.", "Peace.", "Cheers!", "Okay.", "Bye.", "Wow!", "Indeed.")


@dataclass(slots=True)
class Persona:
    """A system prompt (None: no system message) and the style that it asks for."""

    system: str | None = None
    style: str | None = None
    tag: str = ""

    def restyle(self, turn: Turn) -> str:
        """The answer of `turn` as this persona gives it. Only turns with `plain` are restyled."""
        text = turn.answer
        if self.style == "word":
            return turn.core if turn.core is not None else text
        if self.style in ("upper", "lower"):
            return text.upper() if self.style == "upper" else text.lower()
        if self.style == "pirate":
            return f"Arr! {text} Yo ho ho!"
        if self.style == "polite":
            return f"Certainly, Sir. {text}"
        if self.style == "end":
            return f"{text} {self.tag}"
        return f"{self.tag} {text}" if self.style == "begin" else text


def make_persona(rng: random.Random, split: str, state: ChatState, kind: str | None = None) -> Persona:
    """A random persona; writes an assistant's name or facts about the user into `state`."""
    kind = (
        kind
        or rng.choices(("none", "generic", "named", "facts", *_STYLES), (9, 4, 3, 2, 1.3, 1.6, 0.8, 1, 1, 0.8, 0.6))[0]
    )
    if kind == "none":
        return Persona()
    if kind == "generic":
        return Persona(
            rng.choice(_GENERIC) if rng.random() < 0.8 else rng.choice(_GENERIC) + " " + rng.choice(_GENERIC)
        )
    if kind == "named":
        state.assistant_name = words.person(rng)
        return Persona(rng.choice(_NAMED_HELD if split == "eval" else _NAMED).format(v=state.assistant_name))
    if kind == "facts":
        lines = []
        for slot in rng.sample(SLOTS, rng.randint(1, 3)):
            value = slot.value(rng)
            state.memory[slot.name] = value
            lines.append(slot.system.format(v=value))
        return Persona((rng.choice(_GENERIC) + " " if rng.random() < 0.4 else "") + " ".join(lines))
    train, held = _STYLES[kind]
    tag = rng.choice(_TAGS) if rng.random() < 0.6 else words.coined(rng).capitalize() + "."
    bare = tag if rng.random() < 0.5 else f'"{tag}"'
    text = rng.choice(held if split == "eval" else train).replace("{v}.", bare).replace("{v}", bare)
    if rng.random() < 0.3:
        text = rng.choice(_GENERIC) + " " + text
    if rng.random() < 0.2 and kind in ("upper", "pirate", "word"):
        state.assistant_name = words.person(rng)
        text = f"Your name is {state.assistant_name}. {text}"
    return Persona(text, kind, tag)
