"""The `messages` of a chat request to what a chat template takes."""

from __future__ import annotations

import json
from typing import Any

from mlx_server.api.openai.types import must_be, without_nulls
from mlx_server.core.errors import RequestError

_ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLE_LIST = ", ".join(f"'{role}'" for role in _ROLES)
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}  # type of a part -> its field


def template_messages(messages: list[Any]) -> list[dict[str, Any]]:
    """Messages whose content is one string. Raises `RequestError` naming the path of what is wrong.

    `developer` becomes `system`; text parts are joined by newlines; the arguments of tool calls are
    parsed, as templates expect an object.
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise must_be(path, "an object with 'role' and 'content'", message)
    message = without_nulls(message)
    role = message.get("role")
    if role not in _ROLES:
        raise must_be(f"{path}.role", f"one of {_ROLE_LIST}", role)
    if "function_call" in message or "audio" in message:
        field = "function_call" if "function_call" in message else "audio"
        raise RequestError(f"'{path}.{field}' is not supported", f"{path}.{field}", "unsupported_parameter")
    result: dict[str, Any] = {"role": "system" if role == "developer" else role}
    result["content"] = _content(message, role, path)
    for field in ("name", "tool_call_id", "reasoning_content"):
        if field in message:
            result[field] = _string(message[field], f"{path}.{field}")
    calls = message.get("tool_calls")
    if calls is not None and calls != []:
        result["tool_calls"] = _tool_calls(calls, role, f"{path}.tool_calls")
    return result


def _content(message: dict[str, Any], role: str, path: str) -> str:
    content = message.get("content")
    refusal = _string(message.get("refusal", ""), f"{path}.refusal")
    path = f"{path}.content"
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))
    if content is None and role == "assistant":
        return refusal
    raise must_be(path, "a string or a list of text parts", content)


def _part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        raise must_be(path, "an object with 'type' and 'text'", part)
    kind = part.get("type")
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise must_be(f"{path}.type", "'text' (this model takes text only)", kind)
    return _string(part.get(field), f"{path}.{field}")


def _tool_calls(calls: Any, role: str, path: str) -> list[dict[str, Any]]:
    if role != "assistant":
        raise RequestError(f"'{path}' is legal in assistant messages only", path, "invalid_value")
    if not isinstance(calls, list):
        raise must_be(path, "a list of tool calls", calls)
    return [_tool_call(call, f"{path}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise must_be(path, "an object with 'id', 'type' and 'function'", call)
    name = _string(function.get("name"), f"{path}.function.name")
    arguments = _arguments(function.get("arguments"), f"{path}.function.arguments")
    result = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call.get("id") is not None:
        result["id"] = _string(call["id"], f"{path}.id")
    return result


def _arguments(arguments: Any, path: str) -> dict[str, Any]:
    if arguments is None or arguments == "":
        return {}
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise must_be(path, "a JSON object written as a string", arguments)
    return value


def _string(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise must_be(path, "a string", value)
    return value
