"""Known fields that cannot be honoured: refused by name, because ignoring them would change the answer.

Every other field that `types.py` does not list is ignored: it is unknown, or it does not change the
answer (`user`, `metadata`, `store`, `service_tier`, `prediction`, `parallel_tool_calls`, ...).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlx_server.core.errors import RequestError


def _no_tools(value: Any) -> str | None:
    return None if value == [] else "tools are not supported"


def _no_tool_choice(value: Any) -> str | None:
    return None if value in ("none", "auto") else "without tools it must be 'none' or 'auto'"


def _no_response_format(value: Any) -> str | None:
    plain = isinstance(value, dict) and value.get("type") in (None, "text")
    return None if plain else "only {'type': 'text'} is supported"


def _text_only(value: Any) -> str | None:
    return None if value in ([], ["text"]) else "only ['text'] is supported"


def _unsupported(value: Any) -> str | None:
    return "it is not supported"


_REFUSED: dict[str, Callable[[Any], str | None]] = {
    "tools": _no_tools,
    "functions": _no_tools,
    "tool_choice": _no_tool_choice,
    "function_call": _no_tool_choice,
    "response_format": _no_response_format,
    "modalities": _text_only,
    "audio": _unsupported,
    "web_search_options": _unsupported,
}


def check_supported(raw: dict[str, Any]) -> None:
    """Raise `RequestError` for the first field whose value cannot be honoured. A null is absent."""
    for field, reason in _REFUSED.items():
        value = raw.get(field)
        if value is None:
            continue
        problem = reason(value)
        if problem is not None:
            raise RequestError(f"'{field}' cannot be honoured: {problem}", field, "unsupported_parameter")
