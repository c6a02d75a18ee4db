# ruff: noqa: SIM905 - word lists read better as text
"""Things the user tells about himself, and questions about them later in the chat."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from demo_corpus import words
from demo_corpus.phrasing import Phrasings
from demo_corpus.turn import ChatState, Turn


@dataclass(frozen=True, slots=True)
class Slot:
    """One thing worth remembering. Templates use {v}."""

    name: str
    tells: Phrasings
    acknowledge: str
    asks: Phrasings
    recall: str
    unknown: str
    system: str

    def value(self, rng: random.Random) -> str:
        """A random value, partly made up so that it must be copied."""
        return _VALUES[self.name](rng)


_VALUES: dict[str, Callable[[random.Random], str]] = {
    "name": words.person,
    "colour": lambda rng: rng.choice(words.COLORS),
    "pet": words.person,
    "city": words.place,
    "age": lambda rng: str(rng.randint(5, 99)),
    "job": lambda rng: rng.choice(words.JOBS),
    "food": lambda rng: rng.choice(words.FOODS),
    "code": words.code,
    "friend": words.person,
    "number": lambda rng: str(rng.randint(1, 999)),
    "animal": lambda rng: rng.choice("dog cat horse fox wolf owl tiger lion bear rabbit eagle whale".split()),
    "word": lambda rng: words.coined(rng) if rng.random() < 0.5 else rng.choice(words.NOUNS),
}


def _slot(
    name: str,
    tells: str,
    held_tells: str,
    acknowledge: str,
    asks: str,
    held_asks: str,
    recall: str,
    unknown: str,
    system: str,
) -> Slot:
    return Slot(
        name,
        Phrasings(f"tell_{name}", tells.split("|"), held_tells.split("|")),
        acknowledge,
        Phrasings(f"ask_{name}", asks.split("|"), held_asks.split("|")),
        recall,
        unknown,
        system,
    )


SLOTS = [
    _slot(
        "name",
        "My name is {v}.|I am {v}.|I'm {v}.|Call me {v}.|Hi, I am {v}.|Hello, my name is {v}.|People call me {v}.|"
        "My name's {v}.|You can call me {v}.|This is {v}.|Hi, my name is {v}!|I am called {v}.|Remember my name: {v}.",
        "My first name is {v}.|Please remember that my name is {v}.|Everybody calls me {v}.",
        "Nice to meet you, {v}!",
        "What is my name?|What's my name?|Who am I?|Do you know my name?|Do you remember my name?|Tell me my name.|"
        "Say my name.|What am I called?|Can you tell me my name?|Which name did I tell you?|What did I say "
        "my name was?",
        "Do you still know my name?|What was my name?|Could you tell me what my name is?",
        "Your name is {v}.",
        "You have not told me your name.",
        "The user's name is {v}.",
    ),
    _slot(
        "colour",
        "My favourite colour is {v}.|My favorite color is {v}.|The colour I like most is {v}.|I like the "
        "color {v} best.|"
        "{v} is my favourite colour.|Remember that my favourite colour is {v}.",
        "Please remember: my favourite colour is {v}.|The color I love most is {v}.",
        "I will remember that your favourite colour is {v}.",
        "What is my favourite colour?|What is my favorite color?|Which colour do I like most?|What's my "
        "favorite color?|"
        "Do you remember my favourite colour?|Which color do I like best?|Tell me my favourite colour.",
        "Which colour is my favourite?|Do you know my favorite color?",
        "Your favourite colour is {v}.",
        "You have not told me your favourite colour.",
        "The user's favourite colour is {v}.",
    ),
    _slot(
        "pet",
        "My pet is called {v}.|My dog is called {v}.|My pet's name is {v}.|I have a pet called {v}.|I have a "
        "pet named {v}.|"
        "The name of my pet is {v}.",
        "My pet has the name {v}.|Remember that my pet is called {v}.",
        "I will remember that your pet is called {v}.",
        "What is my pet called?|What is the name of my pet?|What's my pet's name?|Do you remember the name of my pet?|"
        "How is my pet called?|Tell me the name of my pet.",
        "What is my pet's name?|Which name does my pet have?",
        "Your pet is called {v}.",
        "You have not told me about a pet.",
        "The user has a pet called {v}.",
    ),
    _slot(
        "city",
        "I live in {v}.|My home is in {v}.|I come from {v}.|I am from {v}.|My city is {v}.|My home town is {v}.|"
        "I moved to {v}.|Remember that I live in {v}.",
        "My house is in {v}.|These days I live in {v}.",
        "I will remember that you live in {v}.",
        "Where do I live?|Which city do I live in?|In which city do I live?|Where is my home?|What city am I from?|"
        "Do you remember where I live?|Where am I from?",
        "Do you know where I live?|What city do I live in?",
        "You live in {v}.",
        "You have not told me where you live.",
        "The user lives in {v}.",
    ),
    _slot(
        "age",
        "I am {v} years old.|My age is {v}.|I'm {v} years old.|I turned {v} this year.|I am {v} years of age.|"
        "Remember that I am {v} years old.",
        "I just turned {v}.|This year I became {v} years old.",
        "I will remember that you are {v} years old.",
        "How old am I?|What is my age?|Do you remember my age?|Tell me my age.|Do you remember how old I am?|"
        "What's my age?",
        "Do you know how old I am?|Can you tell me my age?",
        "You are {v} years old.",
        "You have not told me your age.",
        "The user is {v} years old.",
    ),
    _slot(
        "job",
        "I work as a {v}.|My job is {v}.|I am a {v} by trade.|My profession is {v}.|I earn my money as a {v}.",
        "I have a job as a {v}.|My occupation is {v}.",
        "I will remember that your job is {v}.",
        "What is my job?|What do I do for a living?|What's my job?|What is my profession?|Do you remember my job?|"
        "What do I work as?",
        "Which job do I have?|Can you tell me my job?",
        "Your job is {v}.",
        "You have not told me your job.",
        "The user works as a {v}.",
    ),
    _slot(
        "food",
        "My favourite food is {v}.|My favorite food is {v}.|I like to eat {v} most.|The food I like best is {v}.|"
        "I love {v} more than any other food.|{v} is my favourite food.",
        "The food I love most is {v}.|Remember that my favourite food is {v}.",
        "I will remember that your favourite food is {v}.",
        "What is my favourite food?|What is my favorite food?|What do I like to eat most?|Which food do I like best?|"
        "Do you remember my favourite food?|What's my favorite food?",
        "Which food is my favourite?|Do you know what I like to eat most?",
        "Your favourite food is {v}.",
        "You have not told me your favourite food.",
        "The user's favourite food is {v}.",
    ),
    _slot(
        "code",
        "The code is {v}.|Remember the code {v}.|My code is {v}.|The secret code is {v}.|Please remember "
        "this code: {v}|"
        "Keep this code in mind: {v}|Remember this code: {v}|The password is {v}.",
        "Do not forget the code {v}.|Note down the code {v}.",
        "I will remember the code {v}.",
        "What is the code?|What was the code?|Tell me the code.|What's the code?|Do you remember the code?|"
        "Which code did I give you?|What is my code?|What is the secret code?|What is the password?",
        "Which code did I tell you?|Can you tell me the code?",
        "The code is {v}.",
        "You have not told me a code.",
        "The code is {v}.",
    ),
    _slot(
        "friend",
        "My best friend is {v}.|My best friend is called {v}.|My friend's name is {v}.|I have a friend called {v}.|"
        "The name of my best friend is {v}.|{v} is my best friend.",
        "My best friend's name is {v}.|I have a best friend named {v}.",
        "I will remember that your friend is {v}.",
        "Who is my best friend?|What is my friend called?|What is the name of my friend?|Do you remember my "
        "friend's name?|"
        "What is my best friend's name?|Who is my friend?",
        "What is the name of my best friend?|Tell me who my best friend is.",
        "Your friend is {v}.",
        "You have not told me about a friend.",
        "The user has a friend called {v}.",
    ),
    _slot(
        "number",
        "My lucky number is {v}.|My favourite number is {v}.|Remember the number {v}.|I think of the number {v}.|"
        "The number is {v}.|Please remember this number: {v}",
        "Keep the number {v} in mind.|My favorite number is {v}.",
        "I will remember the number {v}.",
        "What is my number?|What is my lucky number?|Which number did I tell you?|What was the number?|"
        "What is my favourite number?|Do you remember the number?|Tell me my number.",
        "What number did I tell you?|Do you remember my number?",
        "The number is {v}.",
        "You have not told me a number.",
        "The user's number is {v}.",
    ),
    _slot(
        "animal",
        "My favourite animal is the {v}.|My favorite animal is the {v}.|The animal I like most is the {v}.|"
        "The {v} is my favourite animal.|I like the {v} more than other animals.",
        "The animal I love most is the {v}.|Remember that my favourite animal is the {v}.",
        "I will remember that your favourite animal is the {v}.",
        "What is my favourite animal?|Which animal do I like most?|What is my favorite animal?|"
        "Do you remember my favourite animal?|What animal do I like best?",
        "Which animal is my favourite?|Do you know my favorite animal?",
        "Your favourite animal is the {v}.",
        "You have not told me your favourite animal.",
        "The user's favourite animal is the {v}.",
    ),
    _slot(
        "word",
        "Remember the word {v}.|The word is {v}.|The magic word is {v}.|Please remember this word: {v}|"
        "Keep the word {v} in mind.|The secret word is {v}.",
        "Do not forget the word {v}.|My word is {v}.",
        "I will remember the word {v}.",
        "What is the word?|What was the word?|Which word did I tell you?|Do you remember the word?|Tell me the word.|"
        "What is the magic word?|What is the secret word?|Which word did you have to remember?",
        "What word did I tell you?|Can you tell me the word?",
        "The word is {v}.",
        "You have not told me a word.",
        "The word is {v}.",
    ),
]
_PREVIOUS = Phrasings(
    "previous_message",
    [
        "What did I just say?",
        "What was my last message?",
        "What was my previous message?",
        "Repeat my last message.",
        "What did I write before this?",
        "What did I just ask?",
        "Repeat my last question.",
        "Say my previous message again.",
    ],
    ["Can you repeat my last message?", "What was the last thing I said?"],
)


def tell_turn(rng: random.Random, split: str, state: ChatState, slot: Slot | None = None) -> Turn:
    """The user states something; the chat's memory is updated."""
    slot = slot or rng.choice(SLOTS)
    value = slot.value(rng)
    user = slot.tells.ask(rng, split, "", v=value)
    state.memory[slot.name] = value
    return Turn(user, slot.acknowledge.format(v=value), f"The user tells me something. I remember it: {value}.")


def ask_turn(rng: random.Random, split: str, state: ChatState, slot: Slot | None = None) -> Turn:
    """A question about something told before, or (sometimes) never told."""
    if slot is None:
        known = [s for s in SLOTS if s.name in state.memory]
        slot = rng.choice(known if known and rng.random() < 0.8 else SLOTS)
    user = slot.asks.ask(rng, split, "")
    value = state.memory.get(slot.name)
    if value is None:
        return Turn(user, slot.unknown, "The user has not told me this.", "Unknown.")
    return Turn(user, slot.recall.format(v=value), f"The user told me: {value}.", value)


def previous_turn(rng: random.Random, split: str, state: ChatState) -> Turn | None:
    """A question about the message before; None where that one is long or missing."""
    if state.last_user is None or len(state.last_user) > 70 or "\n" in state.last_user:
        return None
    return Turn(
        _PREVIOUS.ask(rng, split),
        f'You said: "{state.last_user}"',
        "I look at the message before this one.",
        plain=False,
    )
