"""Tools that people try first: weather, calculator, time, search, mail and so on."""

from __future__ import annotations

import random

from demo_corpus import action_tools, lookup_tools
from demo_corpus.tool_schema import Tool

ARITHMETIC_TOOLS = {"calculator", "calculate", "eval_expression", "compute", "math", "add", "multiply", "sum_numbers"}

MAKERS = [
    lookup_tools.weather_tool,
    lookup_tools.weather_tool,
    lookup_tools.weather_tool,
    lookup_tools.forecast_tool,
    lookup_tools.calculator_tool,
    lookup_tools.calculator_tool,
    lookup_tools.two_numbers_tool,
    lookup_tools.time_tool,
    lookup_tools.time_tool,
    action_tools.search_tool,
    action_tools.search_tool,
    action_tools.mail_tool,
    action_tools.alarm_tool,
    action_tools.translate_tool,
    action_tools.light_tool,
    action_tools.stock_tool,
    action_tools.convert_tool,
    action_tools.lookup_tool,
]


def known_tool(rng: random.Random) -> Tool:
    """One of the usual tools, with varying names and descriptions."""
    return rng.choice(MAKERS)(rng)
