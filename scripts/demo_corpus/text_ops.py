"""Work on given text: repeat, spell, change case, pick words and letters."""

from __future__ import annotations

import random

from demo_corpus.countries import CAPITALS
from demo_corpus.phrasing import Phrasings
from demo_corpus.turn import Turn
from demo_corpus.words import LEXICON, NAMES, any_word, code, sentence

_REPEAT = Phrasings(
    "repeat",
    [
        "Repeat: {x}",
        "Repeat after me: {x}",
        "Say: {x}",
        "Say {q}",
        "Repeat {q}",
        "Please repeat: {x}",
        "Repeat the following: {x}",
        "Write: {x}",
        "Write {q}",
        "Copy this: {x}",
        "Echo: {x}",
        "Echo {q}",
        "Say exactly this: {x}",
        "Repeat this text: {x}",
        "Can you say {q}?",
        "Repeat the text {q}",
        "Copy the following text: {x}",
        "Repeat exactly: {x}",
        "Say the words {q}",
        "Output {q}",
        "Say the following: {x}",
        "Reply with {q}",
        "Answer with exactly: {x}",
    ],
    [
        "Now you say: {x}",
        "Can you repeat {q}?",
        "Repeat this: {x}",
        "Reply with exactly: {x}",
        "Write down {q}",
        "Say this after me: {x}",
    ],
)
_TIMES = Phrasings(
    "times",
    [
        "Say {q} {n} times.",
        "Repeat {q} {n} times.",
        "Write {q} {n} times.",
        "Say {x} {n} times.",
        "Repeat {x} {n} times.",
        "Write the word {x} {n} times.",
        "Repeat the word {x} {n} times.",
        "Please say the word {x} {n} times",
    ],
    ["Can you say {x} {n} times?", "Write {x} {n} times.", "Say the word {q} {n} times."],
)
_SPELL = Phrasings(
    "spell",
    [
        "Spell {x}.",
        "Spell the word {x}.",
        "How do you spell {x}?",
        "Spell {q}",
        "Please spell {x}",
        "Can you spell {x}?",
        "How is {x} spelled?",
        "Spell out {x}.",
        "Tell me how to spell {x}.",
        "Spell {x} letter by letter.",
        "What letters are in {x}?",
    ],
    ["Could you spell {x}?", "Spell the word {q}.", "How is the word {x} spelled?"],
)
_UPPER = Phrasings(
    "upper",
    [
        "Write {x} in upper case.",
        "Uppercase: {x}",
        "Put {q} in capital letters.",
        "Write {q} in uppercase.",
        "Convert {q} to upper case.",
        "Write {x} in capitals.",
        "Make {q} uppercase.",
        "Say {x} in upper case.",
        "Change {x} to uppercase.",
        "Write in capital letters: {x}",
        "Turn {x} into upper case.",
    ],
    ["Convert to uppercase: {x}", "Put {x} in upper case.", "Write {q} in capital letters."],
)
_LOWER = Phrasings(
    "lower",
    [
        "Write {x} in lower case.",
        "Lowercase: {x}",
        "Put {q} in small letters.",
        "Write {q} in lowercase.",
        "Convert {q} to lower case.",
        "Write {x} in small letters.",
        "Make {q} lowercase.",
        "Change {x} to lowercase.",
        "Turn {x} into lower case.",
    ],
    ["Convert to lowercase: {x}", "Put {x} in lower case."],
)
_LETTER = Phrasings(
    "letter",
    [
        "What is the {w} letter of {x}?",
        "What is the {w} letter of the word {x}?",
        "Which is the {w} letter of {x}?",
        "Give me the {w} letter of {x}.",
        "Tell me the {w} letter of {q}.",
        "{w} letter of {x}?",
    ],
    ["Which letter is the {w} letter of {x}?", "What's the {w} letter in {x}?"],
)
_WORD = Phrasings(
    "word",
    [
        "What is the {w} word of {q}?",
        "What is the {w} word in {q}?",
        "Give me the {w} word of {q}.",
        "Which is the {w} word of {q}?",
        "Tell me the {w} word of: {x}",
        "What is the {w} word of: {x}",
        "Which word is {w} in {q}?",
    ],
    ["Which is the {w} word in {q}?", "Tell me the {w} word in {q}."],
)
_BACK = Phrasings(
    "backwards",
    [
        "List these words in reverse order: {x}",
        "Reverse the order of these words: {x}",
        "Write these words backwards: {x}",
        "Reverse this list: {x}",
        "Give me these words in reverse: {x}",
    ],
    ["Put these words in reverse order: {x}", "Reverse these words: {x}"],
)
_NUMBER = {2: ("two", "2"), 3: ("three", "3"), 4: ("four", "4"), 5: ("five", "5")}
_PLACE_WORDS = sorted({word for pair in CAPITALS.items() for name in pair for word in name.split() if word.isalpha()})
_ORDER = ("first", "second", "third")


def _quoted(rng: random.Random, text: str) -> str:
    return rng.choice(('"{}"', "'{}'", '"{}"', "{}")).format(text)


def _phrase(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.3:
        text = sentence(rng)
    elif roll < 0.4:
        text = code(rng)
    else:
        text = " ".join(any_word(rng) for _ in range(rng.choice((1, 1, 2, 3, 4, 5, 7))))
    return text[0].upper() + text[1:] if rng.random() < 0.3 else text


def _known_word(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.72:
        return rng.choice(LEXICON)
    return rng.choice(_PLACE_WORDS if roll < 0.9 else NAMES)


def repeat_turn(rng: random.Random, split: str) -> Turn:
    """Say something back, once or several times."""
    if rng.random() < 0.75:
        text = _phrase(rng)
        user = _REPEAT.ask(rng, split, x=text, q=_quoted(rng, text))
        for closer in (" Thanks.", " Thanks!", " Please.", " Thank you.", " please", " thanks", " Thank you!"):
            # A closer behind the text to copy would be ambiguous.
            user = user.removesuffix(closer)
        return Turn(user, text, f"I must say this back: {text}", plain=False)
    word = any_word(rng)
    count = rng.choice(list(_NUMBER))
    user = _TIMES.ask(rng, split, x=word, q=_quoted(rng, word), n=rng.choice(_NUMBER[count]))
    if rng.random() < 0.15:
        user, count = f"{rng.choice(('Say', 'Write', 'Repeat'))} {word} twice", 2
    return Turn(user, " ".join([word] * count), f"I must say {word} {count} times.", plain=False)


def spell_turn(rng: random.Random, split: str) -> Turn:
    """Letters of a word: spelling, first letter."""
    word = _known_word(rng) if rng.random() < 0.8 else any_word(rng)
    if rng.random() < 0.7:
        user = _SPELL.ask(rng, split, word, x=word, q=_quoted(rng, word))
        answer = "-".join(word.upper())
        return Turn(user, answer, f"The word is {word}. I name its letters.", plain=False)
    which = rng.choice(("first", "first", "last", "second"))
    at = {"first": 0, "second": 1, "last": -1}[which]
    letter = word[at].upper()
    user = _LETTER.ask(rng, split, word, x=word, q=_quoted(rng, word), w=which)
    return Turn(
        user, f"The {which} letter of {word} is {letter}.", f"The letters are {'-'.join(word.upper())}.", letter
    )


def case_turn(rng: random.Random, split: str) -> Turn:
    """Upper or lower case of one to three words."""
    words = [_known_word(rng).lower() for _ in range(rng.choice((1, 1, 2, 3)))]
    text = " ".join(words)
    if rng.random() < 0.65:
        user = _UPPER.ask(rng, split, text, x=text, q=_quoted(rng, text))
        return Turn(user, text.upper(), f"I write {text} in upper case.", plain=False)
    shown = text.upper() if rng.random() < 0.6 else text.title()
    user = _LOWER.ask(rng, split, text, x=shown, q=_quoted(rng, shown))
    return Turn(user, text, f"I write {shown} in lower case.", plain=False)


def pick_turn(rng: random.Random, split: str) -> Turn:
    """A word of a phrase by its place, or the words in reverse order."""
    words = [any_word(rng) for _ in range(rng.randint(3, 5))]
    if rng.random() < 0.3:
        user = _BACK.ask(rng, split, x=", ".join(words))
        return Turn(user, ", ".join(reversed(words)), "I go from the last word to the first.", plain=False)
    which = rng.choice((*_ORDER, "last", "first", "last"))
    word = words[-1] if which == "last" else words[_ORDER.index(which)]
    text = " ".join(words)
    user = _WORD.ask(rng, split, w=which, x=text, q=f'"{text}"')
    return Turn(user, f"The {which} word is {word}.", f"I look for the {which} word of {text}.", word, plain=False)
