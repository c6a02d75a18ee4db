# ruff: noqa: SIM905 - word lists read better as text
"""Tools that search, send, set, translate, switch and convert."""

from __future__ import annotations

import random

from demo_corpus import words
from demo_corpus.tool_schema import Tool, raw


def search_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    return Tool(
        rng.choice(("search_web", "web_search", "search", "search_docs", "internet_search", "google")),
        rng.choice(("Search the web", "Search for information", "Search the internet for a query.")),
        (
            raw(
                rng.choice(("query", "query", "q", "search_query", "text")),
                "string",
                "The search query",
                lambda r: " ".join(words.any_word(r) for _ in range(r.randint(1, 4))),
            ),
        ),
        (
            "Search for {0}",
            "Search the web for {0}",
            "Look up {0}",
            "Find information about {0}",
            "Google {0}",
            "search {0}",
            "Please search for {0}",
            "Do a search for {0}",
        ),
        ("Can you search for {0}", "Find something about {0}", "Search the internet for {0}"),
    )


def mail_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    second = rng.choice(("message", "body", "text", "content"))
    return Tool(
        rng.choice(("send_email", "send_message", "send_mail", "message")),
        "Send a message to a person",
        (
            raw(rng.choice(("to", "recipient", "name")), "string", "Who gets the message", words.person),
            raw(second, "string", "The text of the message", words.sentence),
        ),
        (
            "Send {0} the message: {1}",
            "Send a message to {0}: {1}",
            "Write to {0}: {1}",
            "Tell {0}: {1}",
            "Send an email to {0}: {1}",
            'Send "{1}" to {0}.',
            'Message {0}: "{1}"',
        ),
        ("Please send {0} this message: {1}", 'Write "{1}" to {0}.'),
    )


def alarm_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""

    def clock(r: random.Random) -> str:
        return f"{r.randint(0, 23):02d}:{r.choice(('00', '15', '30', '45'))}"

    if rng.random() < 0.5:
        return Tool(
            rng.choice(("set_alarm", "create_alarm")),
            "Set an alarm",
            (raw("time", "string", "The time", clock),),
            ("Set an alarm for {0}.", "Wake me at {0}.", "I need an alarm at {0}.", "alarm at {0}"),
            ("Wake me up at {0}.", "Make an alarm for {0}."),
        )
    return Tool(
        rng.choice(("set_timer", "start_timer")),
        "Start a timer",
        (raw("minutes", "integer", "Minutes", lambda r: r.randint(1, 90)),),
        (
            "Set a timer for {0} minutes.",
            "Start a timer of {0} minutes.",
            "timer {0} minutes",
            "I need a timer for {0} minutes.",
        ),
        ("Can you set a {0} minute timer?", "Start a {0} minute timer."),
    )


def translate_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    return Tool(
        rng.choice(("translate", "translate_text")),
        "Translate a text into another language",
        (
            raw("text", "string", "The text", words.sentence),
            raw(
                rng.choice(("language", "target_language", "to")),
                "string",
                "The language",
                lambda r: r.choice("French German Spanish Italian Dutch Polish Greek Turkish Chinese Japanese".split()),
            ),
        ),
        (
            'Translate "{0}" into {1}.',
            "Translate to {1}: {0}",
            "Translate into {1}: {0}",
            'What is "{0}" in {1}?',
            'How do you say "{0}" in {1}?',
        ),
        ('Please translate "{0}" to {1}.', 'Say "{0}" in {1}.'),
    )


def light_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    rooms = tuple(rng.sample(("kitchen", "bedroom", "bathroom", "office", "garage", "garden"), rng.randint(3, 5)))
    return Tool(
        rng.choice(("set_light", "control_light", "switch_light")),
        "Switch a light on or off",
        (
            raw("room", "string", "The room", lambda r: r.choice(rooms), choices=rooms),
            raw("state", "string", "on or off", lambda r: r.choice(("on", "off")), choices=("on", "off")),
        ),
        ("Turn {1} the light in the {0}.", "Switch {1} the {0} light.", "Turn the {0} light {1}.", "{0} light {1}"),
        ("Please switch the light in the {0} {1}.", "Turn {1} the {0} light."),
    )


def stock_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    return Tool(
        rng.choice(("get_stock_price", "stock_price", "get_price")),
        "Get the price of a stock",
        (
            raw(
                rng.choice(("symbol", "ticker", "stock")),
                "string",
                "The ticker symbol",
                lambda r: "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(3, 4))),
            ),
        ),
        (
            "What is the stock price of {0}?",
            "Price of {0}?",
            "How much is {0} stock?",
            "Get the stock price of {0}.",
            "What does {0} cost?",
        ),
        ("What is the price of {0}?", "Tell me the stock price of {0}."),
    )


def convert_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    names = rng.choice(
        (("amount", "from", "to"), ("amount", "from_currency", "to_currency"), ("value", "source", "target"))
    )

    def currency(r: random.Random) -> str:
        return r.choice(("EUR", "USD", "GBP", "JPY", "CHF", "SEK"))

    return Tool(
        rng.choice(("convert_currency", "convert")),
        "Convert an amount of money",
        (
            raw(names[0], "number", "The amount", lambda r: r.randint(1, 999)),
            raw(names[1], "string", "The currency to convert from", currency),
            raw(names[2], "string", "The currency to convert to", currency),
        ),
        ("Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "What is {0} {1} in {2}?", "{0} {1} in {2}"),
        ("Change {0} {1} into {2}.", "How many {2} are {0} {1}?"),
        "number",
    )


def lookup_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    what = rng.choice(("population", "mayor", "postcode", "news", "map", "traffic"))
    return Tool(
        rng.choice((f"get_{what}", f"lookup_{what}")),
        f"Get the {what} of a city",
        (raw(rng.choice(("city", "place")), "string", "The city", words.place),),
        (
            f"What is the {what} of {{0}}?",
            f"Tell me the {what} of {{0}}.",
            f"{what} of {{0}}",
            f"Get the {what} of {{0}}.",
            f"Give me the {what} of {{0}}.",
        ),
        (f"Can you look up the {what} of {{0}}?", f"I need the {what} of {{0}}."),
    )
