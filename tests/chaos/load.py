"""The mixed load: a closed loop of clients, each answer held against its truth."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from tests.chaos import http_client, openai_client
from tests.chaos.answer import Answer
from tests.chaos.checker import Known, check_complete, is_near_tie
from tests.chaos.run_state import Run

ANSWER_S = 300
"""Longest that a request may take, refusals and many deaths of the engine included; then it is lost."""
_AFTER_VIOLATION_S = 0.5
_LONGEST_RETRY_S = 1.0
"""Of Retry-After; a run has no time for more."""


async def work(run: Run, number: int) -> None:
    """One client, until it is cancelled while the load is shut. Every fifth is the official one."""
    rng = random.Random(f"client {number} of {run.seed}")
    cases = run.of_use("load") + run.of_use("long")
    while True:
        await run.open.wait()
        known = rng.choice(cases)
        await answered(run, known, stream=rng.random() < 0.65, official=number % 5 == 4)


async def answered(run: Run, known: Known, stream: bool, official: bool = False) -> None:
    """Ask, as often as the daemon refuses for overload, and check what comes."""
    answer = await ask(run, known, stream, official)
    problems = check_complete(known, answer, stream)
    run.counts["answers"] += 1
    run.counts["answers streamed" if stream else "answers whole"] += 1
    run.counts["answers of the official client"] += official
    if not problems:
        run.counts["tokens"] += known.completion_tokens
    elif is_near_tie(known, answer):
        run.counts["near ties"] += 1
    else:
        violate(run, known, stream, official, problems, answer)
        await asyncio.sleep(_AFTER_VIOLATION_S)


async def ask(run: Run, known: Known, stream: bool, official: bool = False, **behaviour: Any) -> Answer:
    """The first answer that is no refusal for overload. behaviour: of `http_client.ask`."""
    ends_s = time.monotonic() + ANSWER_S
    while True:
        with run.flight() as answer:
            try:
                async with asyncio.timeout(ends_s - time.monotonic()):
                    if official:
                        await openai_client.ask(run.openai, known.body, stream, into=answer)
                    else:
                        await http_client.ask(run.url, known.body, stream, into=answer, **behaviour)
            except TimeoutError:
                answer.transport = f"no whole answer within {ANSWER_S} s"
        if answer.retry_after_s is None or time.monotonic() > ends_s:
            return answer
        run.counts[f"refused with {answer.status}"] += 1
        await asyncio.sleep(min(answer.retry_after_s, _LONGEST_RETRY_S))


def violate(
    run: Run, known: Known, stream: bool, official: bool, problems: list[str], answer: Answer, **detail: Any
) -> None:
    """Put down all that is needed to ask for the same again."""
    run.violate(
        "; ".join(problems),
        case=known.name,
        body=known.body,
        stream=stream,
        client="official" if official else "bare",
        true=[(choice.text, choice.finish_reason) for choice in known.choices],
        received=answer.brief(),
        **detail,
    )
