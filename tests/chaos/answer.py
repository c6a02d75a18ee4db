"""What a client received, piece by piece, whichever client it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ChoiceReceived:
    """pieces: texts as they came. finish_reasons: all that came; one is right.

    tokens: those of the logprobs. gaps: what the best token was ahead of the second, where both were asked for.
    """

    pieces: list[str] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Answer:
    """Times are seconds of `time.monotonic`.

    times: when each piece of text came. usage: None until it came. dones: `[DONE]` events. error: the error object
    that the daemon sent, as a body or as an event. transport: what went wrong with the connection.
    broken_off: the client closed the connection itself.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    choices: dict[int, ChoiceReceived] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    dones: int = 0
    error: dict[str, Any] | None = None
    transport: str | None = None
    broken_off: bool = False

    @property
    def retry_after_s(self) -> float | None:
        """Of a refusal for overload (429, 503); None for any other answer, also for one without the header."""
        value = self.headers.get("retry-after", "")
        return float(value) if self.status in (429, 503) and value.isdigit() else None

    def choice(self, index: int) -> ChoiceReceived:
        return self.choices.setdefault(index, ChoiceReceived())

    def take_choice(self, raw: dict[str, Any], part: str, now_s: float) -> None:
        """One entry of `choices`. part: `delta` of a chunk, or `message` of a whole answer."""
        choice = self.choice(raw["index"])
        text = raw[part].get("content")
        if text:
            choice.pieces.append(text)
            self.times.append(now_s)
        if raw.get("logprobs"):
            for entry in raw["logprobs"]["content"] or ():
                choice.tokens.append(entry["token"])
                best = [other["logprob"] for other in entry["top_logprobs"]]
                choice.gaps += [best[0] - best[1]] if len(best) > 1 else []
        if raw.get("finish_reason") is not None:
            choice.finish_reasons.append(raw["finish_reason"])

    def take(self, raw: dict[str, Any], part: str, now_s: float) -> None:
        """A chunk of a stream, a whole answer or an error object."""
        self.error = raw.get("error") or self.error
        self.usage = raw.get("usage") or self.usage
        for choice in raw.get("choices", ()):
            self.take_choice(choice, part, now_s)

    def brief(self) -> dict[str, Any]:
        """For the report of a violation."""
        return {
            "status": self.status,
            "choices": {
                index: {"text": choice.text, "finish_reasons": choice.finish_reasons, "tokens": choice.tokens}
                for index, choice in self.choices.items()
            },
            "usage": self.usage,
            "dones": self.dones,
            "error": self.error,
            "transport": self.transport,
        }
