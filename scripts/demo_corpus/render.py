"""ChatML text of a chat, cut into what the model reads and what it writes.

Must equal `chat_template.jinja` of the demo model; `scripts/train_demo_model.py --check` compares them.
"""

from __future__ import annotations

import json
from typing import Any

from demo_corpus.turn import Message

Segment = tuple[str, bool]  # text, whether the model writes it
NO_THOUGHT = "<think>\n\n</think>\n\n"


def head(system: str | None, tools: list[dict[str, Any]]) -> str:
    """The system message with the tools in it; empty where there is neither."""
    if not tools:
        return "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    before = "" if system is None else system + "\n\n"
    return (
        f"<|im_start|>system\n{before}# Tools\n\nYou may call these functions:\n<tools>{listed}\n</tools>\n\n"
        'To call a function, write:\n<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call><|im_end|>\n'
    )


def segments(messages: list[Message]) -> list[Segment]:
    """User, tool and assistant messages as alternating read and written text."""
    out: list[Segment] = []
    for at, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            out += _assistant(message)
        elif role == "tool":
            first = at == 0 or messages[at - 1]["role"] != "tool"
            last = at + 1 == len(messages) or messages[at + 1]["role"] != "tool"
            out.append(
                (
                    ("<|im_start|>user" if first else "")
                    + f"\n<tool_response>\n{message['content']}\n</tool_response>"
                    + ("<|im_end|>\n" if last else ""),
                    False,
                )
            )
        else:
            out.append((f"<|im_start|>{role}\n{message['content']}<|im_end|>\n", False))
    return out


def _assistant(message: Message) -> list[Segment]:
    thought = message.get("reasoning_content")
    written = message["content"]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        written += "\n" if written else ""
        written += (
            f'<tool_call>\n{{"name": "{function["name"]}", "arguments": '
            f"{json.dumps(function['arguments'], ensure_ascii=False)}}}\n</tool_call>"
        )
    opening = "<|im_start|>assistant\n"
    if thought is None:
        opening += NO_THOUGHT
    else:
        written = f"<think>\n{thought}\n</think>\n\n{written}"
    return [(opening, False), (written + "<|im_end|>", True), ("\n", False)]
