"""Chat requests with one fault each: a value replaced, removed, wrapped or nested, at every place of a legal one."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]

LEGAL: dict[str, Any] = {
    "model": "org/small",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "hi", "name": "Ada"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
    ],
    "stream": False,
    "stream_options": {"include_usage": True, "continuous_usage_stats": False},
    "max_tokens": 8,
    "max_completion_tokens": 8,
    "min_tokens": 1,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logit_bias": {"5": 1.5},
    "seed": 3,
    "stop": ["x", "y"],
    "n": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "ignore_eos": True,
    "priority": "low",
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": True},
    "tools": [],
    "tool_choice": "auto",
    "functions": [],
    "function_call": "none",
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "audio": None,
    "web_search_options": None,
}

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 17, 0.5, -0.0, 1e308, -1e308, 10**30, -(10**30), 2**63, 2**64,
    "", "x", "0", "none", "text", "\u0000", "\U0001f600", "<|im_end|>", "{{ 1 }}", "x" * 1001,
    [], [None], [[]], [5], ["x"] * 17, {}, {"a": 1}, {"type": None}, {"role": "user", "content": "a"},
    {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}},
)  # fmt: skip


def one_fault() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Where the fault is, and the body. Some bodies are legal after all."""
    for path in _paths(LEGAL, ()):
        for value in VALUES:
            yield path, _with(path, value)
        yield path, _with(path, [_at(path)])
        yield path, _with(path, {"value": _at(path)})
        yield path, _without(path)


def broken_text(count: int, seed: int) -> Iterator[bytes]:
    """The legal body as bytes, with some of them cut, changed, doubled or moved."""
    draw = random.Random(seed)
    text = json.dumps(LEGAL).encode()
    for _ in range(count):
        data = bytearray(text)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            end = min(len(data), at + draw.randint(1, 30))
            piece = bytes(data[at:end])
            match draw.randrange(4):
                case 0:
                    del data[at:end]
                case 1:
                    data[at:end] = draw.randbytes(len(piece))
                case 2:
                    data[at:at] = piece * draw.randint(1, 5)
                case _:
                    data[at:at] = draw.choice((b"[", b"{", b'"', b",", b"\\u", b"NaN", b"1e999", b"\xff", b"\x00"))
        yield bytes(data)


def named(path: Path) -> str:
    """A path as refusals write it: `messages[0].role`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _paths(value: Any, path: Path) -> Iterator[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def _parent(body: Any, path: Path) -> Any:
    for part in path[:-1]:
        body = body[part]
    return body


def _at(path: Path) -> Any:
    return copy.deepcopy(_parent(LEGAL, path)[path[-1]])


def _with(path: Path, value: Any) -> dict[str, Any]:
    body = copy.deepcopy(LEGAL)
    _parent(body, path)[path[-1]] = value
    return body


def _without(path: Path) -> dict[str, Any]:
    body = copy.deepcopy(LEGAL)
    del _parent(body, path)[path[-1]]
    return body
