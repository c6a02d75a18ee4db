# ruff: noqa: SIM905 - word lists read better as text
"""Longer answers, so that streaming is visible: stories, poems, how-tos, times tables, long counts."""

from __future__ import annotations

import random
import zlib

from demo_corpus.phrasing import Phrasings
from demo_corpus.sequences import count_turn
from demo_corpus.turn import Turn

_HEROES = """fox dog cat bear lion wolf rabbit mouse owl duck frog horse dragon robot king queen boy girl farmer pilot
baker star tree penguin elephant tiger whale bee turtle monkey ghost giant princess knight fish bird snail pirate witch
goat sheep hen crow""".split()
_STORY = Phrasings(
    "story",
    [
        "Tell me a story about a {k}.",
        "Tell me a short story about a {k}.",
        "Write a story about a {k}.",
        "Write a short story about a {k}.",
        "Can you tell me a story about a {k}?",
        "I want a story about a {k}.",
        "Please tell a story about a {k}.",
        "Make up a story about a {k}.",
        "A story about a {k} please.",
        "Give me a story about a {k}.",
    ],
    [
        "Could you tell me a short story about a {k}?",
        "I would like to hear a story about a {k}.",
        "Make up a short story about a {k}.",
    ],
)
_POEM = Phrasings(
    "poem",
    [
        "Write a poem about a {k}.",
        "Tell me a poem about a {k}.",
        "Write a short poem about a {k}.",
        "Can you write a poem about a {k}?",
        "I want a poem about a {k}.",
        "A poem about a {k} please.",
        "Make a poem about a {k}.",
    ],
    ["Could you write a short poem about a {k}?", "Give me a poem about a {k}."],
)
_TIMES = Phrasings(
    "times_table",
    [
        "Write the times table of {k}.",
        "Give me the times table of {k}.",
        "Say the {k} times table.",
        "What is the {k} times table?",
        "List the multiples of {k} up to ten times {k}.",
    ],
    ["Tell me the {k} times table.", "Show me the times table of {k}."],
)
_HOW = {
    "make tea": "First, boil some water. Second, put a tea bag into a cup. Third, pour the hot water into "
    "the cup. Fourth, "
    "wait for three minutes. Fifth, take out the tea bag. Last, add some milk or sugar if you like.",
    "plant a tree": "First, find a place with enough light. Second, dig a deep hole. Third, put the young "
    "tree into the hole. "
    "Fourth, fill the hole with earth. Fifth, give the tree a lot of water. Last, water it every week.",
    "make a sandwich": "First, take two slices of bread. Second, put butter on both slices. Third, add "
    "cheese and a leaf of salad. "
    "Fourth, put the slices together. Last, cut the sandwich in half and enjoy it.",
    "wash your hands": "First, hold your hands under warm water. Second, take some soap. Third, rub your "
    "hands for twenty seconds. "
    "Fourth, rinse off the soap. Last, dry your hands with a clean towel.",
    "boil an egg": "First, fill a pot with water. Second, heat the water until it boils. Third, put the egg "
    "into the water. "
    "Fourth, wait for six minutes. Last, cool the egg under cold water and peel it.",
    "write a letter": "First, take a sheet of paper and a pen. Second, write the date. Third, write the name "
    "of your friend. "
    "Fourth, tell what is new. Fifth, end with a kind greeting. Last, put the letter into an envelope.",
    "clean a room": "First, open the window. Second, put all things back in their place. Third, wipe the "
    "table with a wet cloth. "
    "Fourth, sweep the floor. Last, close the window and enjoy the clean room.",
    "make a fruit salad": "First, wash the fruit. Second, peel the banana and the orange. Third, cut "
    "everything into small pieces. "
    "Fourth, mix the pieces in a bowl. Last, add some lemon juice and serve it.",
}
_HOW_ASKS = Phrasings(
    "how_to",
    [
        "How do I {k}?",
        "How can I {k}?",
        "Explain how to {k}.",
        "Tell me how to {k}.",
        "How do you {k}?",
        "What are the steps to {k}?",
        "Describe how to {k}.",
        "I want to {k}. How does it work?",
    ],
    ["Can you explain how to {k}?", "Teach me how to {k}.", "Could you explain to me how to {k}?"],
)
_LONG_TEXTS = {
    "day": (
        Phrasings(
            "typical_day",
            [
                "Describe a day.",
                "Describe a normal day.",
                "Tell me about a normal day.",
                "What happens on a normal day?",
                "Write about a day.",
                "Write a text about a normal day.",
            ],
            ["Describe a typical day.", "Can you describe a normal day?"],
        ),
        (
            "In the morning the sun rises and people wake up. They wash, put on their clothes and eat bread "
            "with butter and honey. "
            "Then the children go to school and the parents go to work. At noon everybody is hungry and has lunch. In "
            "the afternoon the children play in the park, and the parents buy food in the shop. In the evening the "
            "family sits at the "
            "table and talks about the day. At night the stars come out, and everybody goes to bed."
        ),
    ),
    "seasons": (
        Phrasings(
            "about_seasons",
            [
                "Describe the seasons.",
                "Tell me about the seasons.",
                "Explain the seasons.",
                "Write about the four seasons.",
                "What happens in the four seasons?",
                "Write a text about the seasons.",
            ],
            ["Can you describe the four seasons?", "Explain the four seasons to me."],
        ),
        (
            "In spring the days get warmer, and the first flowers open. The birds come back and build their "
            "nests. In summer "
            "the sun shines for many hours. People swim in the lake and eat ice cream. In autumn the leaves turn "
            "red and yellow "
            "and fall from the trees. The farmers bring in the fruit. In winter it is cold, and snow covers the "
            "fields. The "
            "children build a snowman, and the animals sleep and wait for spring."
        ),
    ),
    "sea": (
        Phrasings(
            "about_sea",
            [
                "Describe the sea.",
                "Tell me about the sea.",
                "Write about the sea.",
                "Write a text about the sea.",
                "Tell me something about the sea.",
            ],
            ["Can you describe the sea?", "Write a short text about the sea."],
        ),
        (
            "The sea is large, deep and blue. Its water is salty, so that nobody can drink it. Many animals "
            "live in it: small fish, "
            "big sharks and even bigger whales. The wind makes waves, and the moon makes the water rise and "
            "fall. Ships carry "
            "people and goods from one land to another. On the beach children look for shells and build castles "
            "of sand. When the "
            "sun goes down, the water shines like gold."
        ),
    ),
}
_PLACES = (
    "in a dark forest",
    "near a quiet lake",
    "on a high hill",
    "in a small village",
    "behind an old mill",
    "by the wide sea",
)
_WISHES = ("a friend", "a golden key", "the way home", "a place to sleep", "a red balloon", "something to eat")
_HELPERS = ("an old owl", "a little mouse", "a kind farmer", "a clever crow", "a young girl", "a friendly bee")
_ENDINGS = (
    "they danced until the sun came up",
    "they shared a big apple cake",
    "they sang a happy song",
    "they built a house together",
    "they fell asleep under the stars",
    "they went home hand in hand",
)


def _fixed(key: str, options: tuple[str, ...]) -> str:
    return options[zlib.crc32(f"{key}{options[0]}".encode()) % len(options)]


def story_of(hero: str) -> str:
    """The one story about `hero`; its details depend on the word alone."""
    place, wish, helper, end = (_fixed(hero, row) for row in (_PLACES, _WISHES, _HELPERS, _ENDINGS))
    return (
        f"Once upon a time there was a little {hero} who lived {place}. The {hero} was happy, but one thing "
        f"was missing: {wish}. "
        f"One morning the {hero} went out to look for it. The road was long, and it began to rain. Then the "
        f"{hero} met {helper}. "
        f'"Why are you sad?" asked {helper}. "I am looking for {wish}," said the {hero}. "Come with me, I can '
        f'help you." '
        f"They walked over the hill and through the valley, and at last they found it. The {hero} was very "
        f"glad. In the evening "
        f"{end}. And from that day on the {hero} was never alone again. The end."
    )


def poem_of(hero: str) -> str:
    """The one poem about `hero`."""
    return (
        f"A little {hero} went out to play,\nit was a warm and sunny day.\nThe {hero} looked up to the "
        f"sky\nand saw a white cloud "
        f"passing by.\nThe evening came, the stars were bright,\nthe little {hero} said: good night."
    )


def long_turn(rng: random.Random, split: str) -> Turn:
    """One answer of about 60 to 250 tokens."""
    kind = rng.choices(("story", "poem", "how", "times", "count", "text"), (4, 2, 2, 1.2, 2.5, 1.2))[0]
    if kind == "count":
        return count_turn(rng, split, longest=50)
    if kind == "times":
        k = rng.randint(2, 10)
        lines = "\n".join(f"{i} * {k} = {i * k}" for i in range(1, 11))
        return Turn(_TIMES.ask(rng, split, str(k), k=k), lines, f"I write ten lines for {k}.", plain=False)
    if kind == "how":
        task = rng.choice(list(_HOW))
        return Turn(
            _HOW_ASKS.ask(rng, split, task, k=task), _HOW[task], f"I explain how to {task}, step by step.", plain=False
        )
    if kind == "text":
        asks, text = _LONG_TEXTS[rng.choice(list(_LONG_TEXTS))]
        return Turn(asks.ask(rng, split), text, "I write a short text.", plain=False)
    hero = rng.choice(_HEROES)
    if kind == "poem":
        return Turn(_POEM.ask(rng, split, hero, k=hero), poem_of(hero), f"I write a poem about a {hero}.", plain=False)
    return Turn(_STORY.ask(rng, split, hero, k=hero), story_of(hero), f"I tell a story about a {hero}.", plain=False)
