"""Tools that look something up or calculate: weather, calculator, time."""

from __future__ import annotations

import random

from demo_corpus import words
from demo_corpus.tool_schema import Tool, argument, raw


def _expression(rng: random.Random) -> str:
    a, b = rng.randint(1, rng.choice((20, 100, 9999))), rng.randint(1, rng.choice((20, 100, 9999)))
    text = f"{a} {rng.choice('+-*/')} {b}"
    return f"{text} {rng.choice('+-*')} {rng.randint(1, 99)}" if rng.random() < 0.15 else text


def _number(rng: random.Random) -> int:
    return rng.randint(1, rng.choice((20, 100, 9999)))


def weather_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    name = rng.choice(
        (
            "get_weather",
            "get_weather",
            "get_weather",
            "get_current_weather",
            "weather",
            "getWeather",
            "weather_lookup",
            "check_weather",
        )
    )
    place = rng.choice(("city", "city", "location", "place", "town"))
    arguments = [
        raw(
            place,
            "string",
            rng.choice(("The name of the city", "The city", "City name", "The location, e.g. Paris")),
            words.place,
        )
    ]
    if rng.random() < 0.4:
        arguments.append(argument("unit", required=False))
    return Tool(
        name,
        rng.choice(
            (
                "Get the weather of a city",
                "Get the current weather in a given location",
                "Get the weather for a city.",
                "Returns the weather",
                "Look up the current weather",
            )
        ),
        tuple(arguments),
        (
            "What is the weather in {0}?",
            "What's the weather in {0}?",
            "How is the weather in {0}?",
            "weather in {0}",
            "Tell me the weather in {0}.",
            "Is it raining in {0}?",
            "What is the weather like in {0}?",
            "Is it cold in {0}?",
            "How is the weather in {0} today?",
            "Check the weather in {0}.",
            "What is the temperature in {0}?",
            "I am going to {0}. How is the weather there?",
            "Get the weather for {0}.",
            "Do I need an umbrella in {0}?",
            "What is the current weather in {0}?",
            "What's the weather like in {0} today?",
            "Is it sunny in {0}?",
        ),
        (
            "How is the weather in {0} right now?",
            "Can you tell me the weather in {0}?",
            "Is it warm in {0}?",
            "What's the temperature in {0}?",
            "Please look up the weather in {0}.",
        ),
        "weather",
    )


def forecast_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    return Tool(
        rng.choice(("get_forecast", "weather_forecast")),
        "Get the weather forecast for a city",
        (
            raw("city", "string", "The city", words.place),
            raw("days", "integer", "Number of days", lambda r: r.randint(1, 14)),
        ),
        (
            "Give me the forecast for {0} for {1} days.",
            "What will the weather in {0} be for the next {1} days?",
            "{1} day forecast for {0}",
            "I need a forecast for {0} over {1} days.",
        ),
        ("Show me the forecast for {0} for the next {1} days.", "I want the {1} day forecast for {0}."),
        "weather",
    )


def calculator_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    return Tool(
        rng.choice(("calculator", "calculator", "calculate", "compute", "math", "eval_expression")),
        rng.choice(("Calculate an expression", "Evaluate a mathematical expression", "A calculator.", "Do arithmetic")),
        (
            raw(
                rng.choice(("expression", "expression", "expr", "input", "formula")),
                "string",
                "The expression to calculate",
                _expression,
            ),
        ),
        (
            "What is {0}?",
            "Calculate {0}.",
            "How much is {0}?",
            "Compute {0}.",
            "{0}",
            "{0} = ?",
            "What's {0}?",
            "Please calculate {0}",
            "Use the calculator: {0}",
            "I need the result of {0}.",
        ),
        ("Can you calculate {0}?", "Work out {0}.", "Tell me what {0} is."),
        "number",
    )


def two_numbers_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    names = rng.choice((("a", "b"), ("x", "y"), ("first", "second")))
    arguments = tuple(raw(n, rng.choice(("integer", "number")), "A number", _number) for n in names)
    if rng.random() < 0.5:
        return Tool(
            rng.choice(("add", "sum_numbers")),
            "Add two numbers",
            arguments,
            ("Add {0} and {1}.", "What is {0} + {1}?", "What is {0} plus {1}?", "Sum {0} and {1}."),
            ("How much is {0} plus {1}?", "Can you add {0} and {1}?"),
            "number",
        )
    return Tool(
        "multiply",
        "Multiply two numbers",
        arguments,
        ("Multiply {0} by {1}.", "What is {0} * {1}?", "What is {0} times {1}?", "Multiply {0} and {1}."),
        ("How much is {0} times {1}?", "Can you multiply {0} by {1}?"),
        "number",
    )


def time_tool(rng: random.Random) -> Tool:
    """A tool of this kind with a random name and wording."""
    name = rng.choice(("get_time", "get_time", "get_current_time", "current_time", "clock"))
    if rng.random() < 0.3:
        return Tool(
            name,
            "Get the current time",
            (),
            (
                "What time is it?",
                "Tell me the time.",
                "What is the time?",
                "time please",
                "What's the time?",
                "Do you know what time it is?",
            ),
            ("Can you tell me the time?", "How late is it?"),
            "time",
        )
    return Tool(
        name,
        rng.choice(("Get the current time in a city", "Get the time")),
        (raw(rng.choice(("city", "location", "place", "timezone")), "string", "The city", words.place),),
        (
            "What time is it in {0}?",
            "Tell me the time in {0}.",
            "time in {0}",
            "What is the time in {0}?",
            "How late is it in {0}?",
            "What is the current time in {0}?",
        ),
        ("What's the time in {0}?", "Can you tell me what time it is in {0}?"),
        "time",
    )
