"""Holds an answer against the truth. Every function returns the problems it found, in words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tests.chaos.answer import Answer
from tests.chaos.catalogue import Use

NEAR_TIE = 1e-3
"""Two greedy candidates this close in log-probability may be told apart by rounding, which depends on the batch."""


@dataclass(frozen=True, slots=True)
class TrueChoice:
    """tokens: of the logprobs. gaps: what the best token was ahead of the second best, in log-probability."""

    text: str
    finish_reason: str
    tokens: tuple[str, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """A request and its truth. body: all of it but for `stream`."""

    name: str
    use: Use
    body: dict[str, Any]
    choices: tuple[TrueChoice, ...]
    prompt_tokens: int
    completion_tokens: int


def check_complete(known: Known, answer: Answer, stream: bool) -> list[str]:
    """Problems of an answer that must be whole and exact."""
    if answer.transport is not None:
        return [f"the connection failed: {answer.transport}"]
    if answer.status != 200 or answer.error is not None:
        return [f"status {answer.status}: {answer.error}"]
    problems = []
    if sorted(answer.choices) != list(range(len(known.choices))):
        problems.append(f"choices {sorted(answer.choices)} instead of {len(known.choices)}")
    for index, true in enumerate(known.choices):
        received = answer.choice(index)
        if received.text != true.text:
            problems.append(f"choice {index}: the text differs{_where(received.text, true.text)}")
        if received.finish_reasons != [true.finish_reason]:
            problems.append(f"choice {index}: finished with {received.finish_reasons}, not {true.finish_reason!r}")
        if known.body.get("logprobs") and tuple(received.tokens) != true.tokens:
            problems.append(f"choice {index}: the tokens of the logprobs differ")
    if stream and answer.dones != 1:
        problems.append(f"{answer.dones} times [DONE]")
    counts = {"prompt_tokens": known.prompt_tokens, "completion_tokens": known.completion_tokens}
    for name, count in counts.items():
        if answer.usage is None or answer.usage[name] != count:
            problems.append(f"{name} is not {count}: {answer.usage}")
    return problems


def check_prefix(known: Known, answer: Answer) -> list[str]:
    """Problems of what came before somebody broke off: it must be a beginning of the truth, and no ending."""
    problems = []
    for index, received in answer.choices.items():
        if index >= len(known.choices):
            problems.append(f"choice {index} of {len(known.choices)}")
            continue
        if not known.choices[index].text.startswith(received.text):
            problems.append(f"choice {index}: what came is not a beginning of the truth: {received.text[-80:]!r}")
        if received.finish_reasons not in ([], [known.choices[index].finish_reason]):
            problems.append(f"choice {index}: finished with {received.finish_reasons}")
    if answer.dones:
        problems.append("[DONE] after an answer that is not whole")
    return problems


def check_failed(known: Known, answer: Answer) -> list[str]:
    """Problems of an answer that must fail with a reason, after nothing or a beginning of the truth."""
    if answer.transport is not None:
        return [f"the connection failed: {answer.transport}"]
    if answer.error is None or not answer.error.get("message"):
        return [f"no error came, but status {answer.status}"]
    if answer.status not in (200, 500):
        return [f"status {answer.status} instead of 500 or an error event: {answer.error}"]
    return check_prefix(known, answer)


def is_near_tie(known: Known, answer: Answer) -> bool:
    """Whether every text that differs does so at a greedy token that was hardly ahead of the next."""
    plain = {"repetition_penalty", "frequency_penalty", "logit_bias"}.isdisjoint(known.body)
    if known.body.get("temperature") != 0 or not plain or answer.status != 200 or answer.error is not None:
        return False
    wrong = [
        (true, answer.choice(index).text)
        for index, true in enumerate(known.choices)
        if answer.choice(index).text != true.text
    ]
    return bool(wrong) and all(_gap_at(true, _common(text, true.text)) < NEAR_TIE for true, text in wrong)


def _gap_at(true: TrueChoice, position: int) -> float:
    """Gap of the token that holds the character at `position`."""
    for end, gap in zip(accumulate(map(len, true.tokens)), true.gaps, strict=True):
        if end > position:
            return gap
    return float("inf")


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _where(text: str, true: str) -> str:
    at = _common(text, true)
    return f" from character {at}: {text[at : at + 40]!r} instead of {true[at : at + 40]!r}"
