# ruff: noqa: SIM905 - word lists read better as text
"""List N things of a kind, always in the same order."""

from __future__ import annotations

import random

from demo_corpus.phrasing import Phrasings
from demo_corpus.turn import Turn

ITEMS = {
    "fruits": "apple banana cherry grape lemon mango orange pear plum".split(),
    "colours": "red blue green yellow orange purple pink black white".split(),
    "colors": "red blue green yellow orange purple pink black white".split(),
    "animals": "dog cat horse cow lion tiger bear wolf fox".split(),
    "vegetables": "carrot potato onion tomato pea bean cucumber cabbage pepper".split(),
    "cities": "Paris London Rome Berlin Madrid Tokyo Cairo Lima Oslo".split(),
    "countries": "France Germany Italy Spain Japan India Brazil Canada Egypt".split(),
    "birds": "eagle owl duck swan crow robin sparrow parrot penguin".split(),
    "flowers": "rose tulip daisy lily violet sunflower orchid iris poppy".split(),
    "drinks": "water milk tea coffee juice lemonade cocoa soda cider".split(),
    "sports": "football tennis swimming running boxing hockey golf skiing rowing".split(),
    "instruments": "piano guitar violin drum flute trumpet harp cello organ".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "numbers": "one two three four five six seven eight nine".split(),
    "insects": "ant bee fly beetle butterfly moth wasp cricket mosquito".split(),
    "trees": "oak pine birch maple willow beech elm cedar ash".split(),
    "metals": "gold silver iron copper tin zinc lead nickel aluminium".split(),
    "tools": "hammer saw drill wrench pliers file screwdriver axe chisel".split(),
    "jobs": "teacher doctor baker farmer pilot painter writer cook nurse".split(),
    "languages": "English French German Spanish Italian Chinese Japanese Arabic Russian".split(),
    "clothes": "shirt trousers dress coat hat sock shoe scarf glove".split(),
    "shapes": "circle square triangle rectangle oval star heart hexagon pentagon".split(),
    "names": "Anna Ben Clara David Emma Frank Grace Henry Ida".split(),
}
COUNTS = {
    1: ("one", "1"),
    2: ("two", "2"),
    3: ("three", "3"),
    4: ("four", "4"),
    5: ("five", "5"),
    6: ("six", "6"),
    7: ("seven", "7"),
}
_ASKS = Phrasings(
    "list",
    [
        "List {n} {k}.",
        "Name {n} {k}.",
        "Give me {n} {k}.",
        "Tell me {n} {k}.",
        "Can you list {n} {k}?",
        "Can you name {n} {k}?",
        "I need {n} {k}.",
        "Write {n} {k}.",
        "Please list {n} {k}",
        "Say {n} {k}.",
        "What are {n} {k}?",
        "Give me a list of {n} {k}.",
        "Make a list of {n} {k}.",
        "{n} {k} please",
        "Do you know {n} {k}?",
    ],
    [
        "Could you name {n} {k}?",
        "Write a list of {n} {k}.",
        "I want {n} {k}.",
        "Show me {n} {k}.",
        "Can you give me {n} {k}?",
    ],
)
_BULLETS = (" Use bullet points.", " One per line.", " As a bullet list.", " Put each on its own line.")


def list_turn(rng: random.Random, split: str) -> Turn:
    """A list of one to seven things, in a line or as bullets."""
    kind = rng.choice(list(ITEMS))
    count = rng.randint(2, 7)
    items = ITEMS[kind][:count]
    user = _ASKS.ask(rng, split, f"{kind},{count}", n=rng.choice(COUNTS[count]), k=kind)
    think = f"I list {count} {kind}."
    if rng.random() < 0.22:
        user = user + ("" if user[-1] in ".?!" else ".") + rng.choice(_BULLETS)
        return Turn(user, "\n".join(f"- {item}" for item in items), think, plain=False)
    return Turn(user, ", ".join(items) + ".", think, plain=False)
