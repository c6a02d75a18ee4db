"""The state of a conversation: its messages and the options each request carries. Knows no terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from mlx_server.cli.chat_client import ChatError


class Message(msgspec.Struct, frozen=True):
    """One turn of one side."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Option:
    """A number that a request may carry, and its legal range, both ends included."""

    kind: type[int] | type[float]
    low: float
    high: float

    def parse(self, name: str, text: str) -> int | float:
        """Raises `ChatError` naming the option, the text and the range."""
        try:
            value = self.kind(text)
            if not self.low <= value <= self.high:
                raise ValueError
        except ValueError:
            noun = "a whole number" if self.kind is int else "a number"
            raise ChatError(f"{name} must be {noun} from {self.low:g} to {self.high:g}, not {text!r}") from None
        return value


OPTIONS = {
    "temperature": Option(float, 0, 2),
    "top_p": Option(float, 0, 1),
    "top_k": Option(int, 0, 1_000_000),
    "min_p": Option(float, 0, 1),
    "max_tokens": Option(int, 1, 10_000_000),
    "seed": Option(int, 0, (1 << 63) - 1),
    "repetition_penalty": Option(float, 0.01, 100),
    "presence_penalty": Option(float, -2, 2),
    "frequency_penalty": Option(float, -2, 2),
}
"""What `/set` sets; the ranges are those of the API."""


class _Saved(msgspec.Struct, forbid_unknown_fields=False):
    """The file format of `/save`."""

    messages: list[Message]
    system: str | None = None
    options: dict[str, float | int] = {}
    thinking: bool | None = None
    model: str | None = None


@dataclass(slots=True)
class ChatSession:
    """Owned by the chat loop.

    messages: user and assistant strictly in turn, starting with a user and ending with an assistant.
    last_prompt: what `/retry` asks again; it may be of a turn that failed.
    thinking: value of the template's `enable_thinking`, None to leave it to the template.
    """

    model: str
    system: str | None = None
    options: dict[str, float | int] = field(default_factory=dict)
    thinking: bool | None = None
    messages: list[Message] = field(default_factory=list)
    last_prompt: str | None = None

    def request(self, prompt: str) -> dict[str, Any]:
        """The body of the request that asks `prompt` after all that was said."""
        turns = [{"role": m.role, "content": m.content} for m in self.messages]
        system = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [*system, *turns, {"role": "user", "content": prompt}],
            **self.options,
        }
        if self.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        return body

    def record(self, prompt: str, answer: str) -> None:
        """Keep an exchange. An empty answer is none: a later request would be malformed."""
        self.last_prompt = prompt
        if answer:
            self.messages += [Message("user", prompt), Message("assistant", answer)]

    def undo(self) -> str | None:
        """Forget the last exchange and return its prompt; None when there is none."""
        if not self.messages:
            return None
        prompt = self.messages[-2].content
        del self.messages[-2:]
        return prompt

    def take_retry(self) -> str | None:
        """The prompt to ask again, its earlier answer forgotten; None when nothing was asked."""
        if self.messages and self.messages[-2].content == self.last_prompt:
            self.undo()
        return self.last_prompt

    def clear(self) -> None:
        """Forget the conversation; system prompt and options stay."""
        self.messages.clear()
        self.last_prompt = None

    def set_option(self, name: str, text: str) -> None:
        """Set an option from its text; 'default' unsets it. Raises `ChatError`."""
        option = OPTIONS.get(name)
        if option is None:
            raise ChatError(f"there is no option {name!r}; there are {', '.join(OPTIONS)}")
        if text == "default":
            self.options.pop(name, None)
        else:
            self.options[name] = option.parse(name, text)

    def save(self, path: Path) -> None:
        """Write the conversation as JSON, readable by its owner only. Raises `ChatError`."""
        saved = _Saved(self.messages, self.system, self.options, self.thinking, self.model)
        try:
            path.touch(mode=0o600)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=2) + b"\n")
        except OSError as error:
            raise ChatError(f"{path} cannot be written: {error.strerror}") from error

    def load(self, path: Path) -> None:
        """Replace the conversation by a saved one; the model stays. Raises `ChatError`."""
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
        except OSError as error:
            raise ChatError(f"{path} cannot be read: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise ChatError(f"{path} is not a saved chat: {error}") from error
        roles = [message.role for message in saved.messages]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise ChatError(f"{path} is not a saved chat: user and assistant must take turns")
        self.messages = saved.messages
        self.system, self.options, self.thinking = saved.system, saved.options, saved.thinking
        self.last_prompt = saved.messages[-2].content if saved.messages else None
