"""The true answer of every case: asked one at a time of a daemon of its own that batches and caches nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.chaos.answer import Answer
from tests.chaos.catalogue import Case
from tests.chaos.checker import Known, TrueChoice
from tests.chaos.http_client import ask

SETTINGS: dict[str, Any] = {"engine": "inprocess", "max_num_seqs": 1, "prefix_cache": False, "kv_memory": "32MB"}


async def find_truth(url: str, cases: list[Case], on_known: Callable[[Known], None]) -> list[Known]:
    """Ask for all of them, in order. Raises `RuntimeError` for a case that has no answer."""
    known: dict[str, Known] = {}
    for case in cases:
        body = case.body | {"messages": [*_chat_before(case, known), *case.body["messages"]]}
        answer = await ask(url, _scored(body), stream=False)
        if answer.status != 200 or answer.transport is not None:
            raise RuntimeError(f"{case.name} has no true answer: {answer.brief()}")
        known[case.name] = _known(case, body, answer)
        on_known(known[case.name])
    return list(known.values())


def _chat_before(case: Case, known: dict[str, Known]) -> list[dict[str, Any]]:
    if case.follows is None:
        return []
    before = known[case.follows]
    return [*before.body["messages"], {"role": "assistant", "content": before.choices[0].text}]


def _scored(body: dict[str, Any]) -> dict[str, Any]:
    """With the two best of each token, whatever the case itself asks for."""
    return body | {"logprobs": True, "top_logprobs": max(2, body.get("top_logprobs", 0))}


def _known(case: Case, body: dict[str, Any], answer: Answer) -> Known:
    choices = tuple(
        TrueChoice(choice.text, choice.finish_reasons[0], tuple(choice.tokens), tuple(choice.gaps))
        for _, choice in sorted(answer.choices.items())
    )
    assert answer.usage is not None
    counts = answer.usage["prompt_tokens"], answer.usage["completion_tokens"]
    return Known(case.name, case.use, body, choices, *counts)
