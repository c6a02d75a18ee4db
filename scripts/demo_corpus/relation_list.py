"""Every relation with its phrasings; the last ones of each are held out."""

from __future__ import annotations

from demo_corpus import countries, fact_tables
from demo_corpus.phrasing import Phrasings
from demo_corpus.relation import Relation


def _relation(
    name: str, rows: dict[str, str], answer: str, train: str, held: str, topic: tuple[str, str] | None = None
) -> Relation:
    return Relation(name, rows, Phrasings(name, _lines(train), _lines(held)), answer, topic)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


_CAPITALS = {countries.article(k): v for k, v in countries.CAPITALS.items()}
_CAPITAL_OF = {v: countries.article(k) for k, v in countries.CAPITALS.items() if v not in countries.SHARED_CAPITALS}
_CAPITAL_OF["London"] = "the United Kingdom"
_CONTINENTS = {countries.article(k): v for k, v in countries.CONTINENTS.items()}
_LANGUAGES = {countries.article(k): v for k, v in countries.LANGUAGES.items()}

CAPITAL = _relation(
    "capital",
    _CAPITALS,
    "The capital of {k} is {v}.",
    """
    What is the capital of {k}?
    What's the capital of {k}?
    Which city is the capital of {k}?
    Name the capital of {k}.
    Tell me the capital of {k}.
    What is the capital city of {k}?
    Can you tell me the capital of {k}?
    Do you know the capital of {k}?
    capital of {k}?
    Give me the capital of {k}.
    {k}: what is the capital?
    What city is the capital of {k}?
    I would like to know the capital of {k}.
    What is {k}'s capital?
    Which is the capital of {k}?
    The capital of {k} is?
    I forgot the capital of {k}. What is it?
    """,
    """
    Could you tell me what the capital of {k} is?
    What is the name of the capital of {k}?
    Which city is {k}'s capital?
    Please name the capital city of {k}.
    """,
    ("country", "capital"),
)

RELATIONS = [
    CAPITAL,
    _relation(
        "capital_of",
        _CAPITAL_OF,
        "{k} is the capital of {v}.",
        """
    {k} is the capital of which country?
    Which country has the capital {k}?
    What country is {k} the capital of?
    Of which country is {k} the capital?
    Which country's capital is {k}?
    Tell me which country has {k} as its capital.
    Whose capital is {k}?
    {k} is the capital of what country?
    """,
        """
    What country has {k} as its capital?
    Name the country whose capital is {k}.
    """,
        ("capital", "country"),
    ),
    _relation(
        "continent",
        _CONTINENTS,
        "{k} is in {v}.",
        """
    On which continent is {k}?
    Which continent is {k} in?
    What continent is {k} on?
    In which continent does {k} lie?
    Tell me the continent of {k}.
    What is the continent of {k}?
    {k} is on which continent?
    Name the continent of {k}.
    """,
        """
    On what continent can I find {k}?
    Which continent does {k} belong to?
    """,
        ("country", "continent"),
    ),
    _relation(
        "language",
        _LANGUAGES,
        "The language of {k} is {v}.",
        """
    What language do people speak in {k}?
    Which language is spoken in {k}?
    What is the language of {k}?
    What do they speak in {k}?
    Which language do people in {k} speak?
    Name the language of {k}.
    Tell me the language spoken in {k}.
    """,
        """
    What language is spoken in {k}?
    What is the main language of {k}?
    """,
        ("country", "language"),
    ),
    _relation(
        "colour",
        fact_tables.COLOR_OF,
        "{k} is {v}.",
        """
    What colour is {k}?
    What color is {k}?
    Which colour is {k}?
    Which color does {k} have?
    What is the colour of {k}?
    What is the color of {k}?
    Tell me the colour of {k}.
    What colour does {k} have?
    Do you know the color of {k}?
    {k}: what colour is that?
    """,
        """
    Which color is {k}?
    Can you tell me what colour {k} is?
    Name the colour of {k}.
    """,
        ("thing", "colour"),
    ),
    _relation(
        "opposite",
        fact_tables.OPPOSITE,
        "The opposite of {k} is {v}.",
        """
    What is the opposite of {k}?
    What's the opposite of {k}?
    What is the opposite of the word {k}?
    Tell me the opposite of {k}.
    Give me the opposite of {k}.
    Which word means the opposite of {k}?
    opposite of {k}?
    Name the opposite of {k}.
    What is the opposite of "{k}"?
    What is the antonym of {k}?
    Do you know the opposite of {k}?
    """,
        """
    Give an antonym for {k}.
    Which word is the opposite of {k}?
    Can you give me the opposite of {k}?
    """,
        ("word", "opposite"),
    ),
    _relation(
        "sound",
        fact_tables.SOUND,
        "A {k} says {v}.",
        """
    What sound does a {k} make?
    What does a {k} say?
    Which sound does a {k} make?
    How does a {k} sound?
    What noise does a {k} make?
    Tell me the sound of a {k}.
    What is the sound of a {k}?
    Make the sound of a {k}.
    What does the {k} say?
    """,
        """
    Which noise does a {k} make?
    What sound does the {k} make?
    """,
        ("animal", "sound"),
    ),
    _relation(
        "young",
        fact_tables.YOUNG,
        "A young {k} is called a {v}.",
        """
    What is a young {k} called?
    What do you call a baby {k}?
    What is a baby {k} called?
    How do you call a young {k}?
    What is the name for a baby {k}?
    Tell me the word for a young {k}.
    What do we call a young {k}?
    """,
        """
    What do people call a baby {k}?
    What is the word for a baby {k}?
    """,
        ("animal", "young"),
    ),
    _relation(
        "legs",
        fact_tables.LEGS,
        "A {k} has {v} legs.",
        """
    How many legs does a {k} have?
    How many legs has a {k}?
    What is the number of legs of a {k}?
    Tell me how many legs a {k} has.
    A {k} has how many legs?
    On how many legs does a {k} stand?
    """,
        """
    Do you know how many legs a {k} has?
    How many legs does the {k} have?
    """,
        ("thing", "legs"),
    ),
    _relation(
        "plural",
        fact_tables.PLURAL,
        "The plural of {k} is {v}.",
        """
    What is the plural of {k}?
    What's the plural of {k}?
    Give me the plural of {k}.
    Tell me the plural of {k}.
    plural of {k}?
    What is the plural form of {k}?
    Form the plural of {k}.
    How do you say {k} in the plural?
    What is the plural of the word {k}?
    One {k}, two what?
    """,
        """
    Write the plural of {k}.
    Which is the plural form of the word {k}?
    Can you tell me the plural of {k}?
    """,
        ("singular", "plural"),
    ),
    _relation(
        "past",
        fact_tables.PAST,
        "The past tense of {k} is {v}.",
        """
    What is the past tense of {k}?
    What's the past tense of {k}?
    Give me the past tense of {k}.
    Tell me the past form of {k}.
    What is the past of {k}?
    Put {k} into the past tense.
    What is the past tense of the verb {k}?
    past tense of {k}?
    """,
        """
    Name the past tense of {k}.
    What is the past tense of to {k}?
    """,
        ("verb", "past"),
    ),
    _relation(
        "symbol",
        fact_tables.SYMBOL,
        "The chemical symbol of {k} is {v}.",
        """
    What is the chemical symbol of {k}?
    What is the symbol for {k}?
    Tell me the chemical symbol for {k}.
    Which chemical symbol does {k} have?
    Give me the symbol of {k}.
    What's the chemical symbol for {k}?
    """,
        """
    Which symbol stands for {k}?
    Name the chemical symbol of {k}.
    """,
        ("element", "symbol"),
    ),
    _relation(
        "author",
        fact_tables.AUTHOR,
        "{k} was written by {v}.",
        """
    Who wrote {k}?
    Who is the author of {k}?
    By whom was {k} written?
    Which writer wrote {k}?
    Tell me who wrote {k}.
    Who was the author of {k}?
    Do you know who wrote {k}?
    """,
        """
    Name the author of {k}.
    Can you tell me who wrote {k}?
    """,
        ("book", "author"),
    ),
    _relation(
        "amount",
        fact_tables.AMOUNT,
        "There are {v} {k}.",
        """
    How many {k}?
    How many {k} are there?
    What is the number of {k}?
    Tell me how many {k} there are.
    Do you know how many {k} there are?
    Give me the number of {k}.
    """,
        """
    Can you tell me the number of {k}?
    How many {k} do we have?
    """,
    ),
    _relation(
        "kind",
        fact_tables.KIND,
        "{k} is a kind of {v}.",
        """
    What kind of thing is {k}?
    What sort of thing is {k}?
    {k} is a kind of what?
    Which category does {k} belong to?
    Is {k} a fruit, an animal or something else?
    To which group does {k} belong?
    """,
        """
    What category is {k}?
    What type of thing is {k}?
    """,
        ("thing", "kind"),
    ),
    _relation(
        "definition",
        fact_tables.DEFINITION,
        "{k} is {v}.",
        """
    What is {k}?
    What's {k}?
    Explain what {k} is.
    Tell me what {k} is.
    Can you explain what {k} is?
    Define {k}.
    What does {k} mean?
    What do we call {k}?
    Describe {k}.
    Do you know what {k} is?
    I do not know what {k} is. Can you explain it?
    Please explain {k}.
    """,
        """
    Could you explain to me what {k} is?
    Give me a definition of {k}.
    What exactly is {k}?
    """,
    ),
]
