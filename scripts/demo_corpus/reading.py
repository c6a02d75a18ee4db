"""Short texts with a question about them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo_corpus import words
from demo_corpus.phrasing import Phrasings
from demo_corpus.turn import Turn


@dataclass(frozen=True, slots=True)
class Scene:
    """Statements about people ({p}, {v}) and the question about one of them."""

    name: str
    statements: tuple[str, ...]
    asks: Phrasings
    answer: str


def _scene(name: str, statements: str, asks: str, held: str, answer: str) -> Scene:
    return Scene(
        name, tuple(statements.split("|")), Phrasings(f"read_{name}", asks.split("|"), held.split("|")), answer
    )


_SCENES = [
    _scene(
        "lives",
        "{p} lives in {v}.|{p} has a house in {v}.|{p}'s home is in {v}.",
        "Where does {p} live?|In which city does {p} live?|Where is {p}'s home?",
        "Which city does {p} live in?",
        "{p} lives in {v}.",
    ),
    _scene(
        "has",
        "{p} has a {v}.|{p} owns a {v}.",
        "What does {p} have?|What does {p} own?|Which thing does {p} have?",
        "What thing does {p} have?",
        "{p} has a {v}.",
    ),
    _scene(
        "likes",
        "{p} likes {v}.|{p} loves {v}.",
        "What does {p} like?|Which food does {p} like?|What does {p} love?",
        "What food does {p} like?",
        "{p} likes {v}.",
    ),
    _scene(
        "works",
        "{p} is a {v}.|{p} works as a {v}.",
        "What is {p}'s job?|What does {p} work as?|What is the job of {p}?",
        "Which job does {p} have?",
        "{p} is a {v}.",
    ),
    _scene(
        "age",
        "{p} is {v} years old.|{p} is {v}.",
        "How old is {p}?|What is {p}'s age?|What is the age of {p}?",
        "Tell me the age of {p}.",
        "{p} is {v} years old.",
    ),
    _scene(
        "code",
        "The code of {p} is {v}.|{p} has the code {v}.|{p}'s code is {v}.",
        "What is the code of {p}?|What is {p}'s code?|Which code does {p} have?",
        "Tell me the code of {p}.",
        "The code of {p} is {v}.",
    ),
]
_VALUES = {
    "lives": words.place,
    "has": lambda rng: f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}",
    "likes": lambda rng: rng.choice(words.FOODS),
    "works": lambda rng: rng.choice(words.JOBS),
    "age": lambda rng: str(rng.randint(5, 99)),
    "code": words.code,
}


def reading_turn(rng: random.Random, split: str) -> Turn:
    """One to four people with a value each; the question names one of them."""
    scene = rng.choice(_SCENES)
    people = list(dict.fromkeys(words.person(rng) for _ in range(rng.randint(1, 4))))
    values = {p: _VALUES[scene.name](rng) for p in people}
    text = " ".join(rng.choice(scene.statements).format(p=p, v=v) for p, v in values.items())
    target = rng.choice(people)
    question = scene.asks.template(rng, split, "").format(p=target)
    layout = rng.random()
    if layout < 0.7:
        user = f"{text} {question}"
    elif layout < 0.85:
        user = f"{text}\n{question}"
    else:
        user = f"Read this: {text} {question}"
    return Turn(
        user,
        scene.answer.format(p=target, v=values[target]),
        f"The text says it: {values[target]}.",
        values[target],
        plain=False,
    )


_FIND_NEEDLE = Phrasings(
    "needle",
    [
        "What is the code of {p} in the text?",
        "What code does the text give for {p}?",
        "Which code belongs to {p}?",
        "Find the code of {p} in the text above.",
    ],
    ["Tell me the code of {p} from the text above."],
)


def long_text_turn(rng: random.Random, split: str, size: int) -> Turn:
    """About `size` words of filler with one code in it, and a question for that code."""
    sentences: list[str] = []
    count = 0
    while count < size:
        text = words.sentence(rng)
        count += text.count(" ") + 1
        sentences.append(text[0].upper() + text[1:] + ".")
    owner, secret = words.person(rng), words.code(rng)
    sentences.insert(rng.randrange(len(sentences) + 1), f"The code of {owner} is {secret}.")
    user = "Read this text.\n" + " ".join(sentences) + "\n" + _FIND_NEEDLE.template(rng, split, "").format(p=owner)
    return Turn(user, f"The code of {owner} is {secret}.", f"The text says it: {secret}.", secret, plain=False)
