"""What the parts of one run share. Everything runs on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai

from tests.chaos.answer import Answer
from tests.chaos.catalogue import Use
from tests.chaos.checker import Known
from tests.chaos.daemon_process import DaemonProcess

MAX_VIOLATIONS = 200
"""More are counted, not kept."""
_ON_THE_WAY_S = 0.05
"""Text that comes so soon after a death was sent before it."""


@dataclass(slots=True, frozen=True)
class Fault:
    """at_s: since the start of the run. detail: what it was, for the report."""

    at_s: float
    kind: str
    detail: dict[str, Any]


@dataclass(slots=True, frozen=True)
class Pause:
    """A death of the engine, as the streams of the clients saw it: seconds from the fault to the next text of each."""

    at_s: float
    kind: str
    seconds: tuple[float, ...]


@dataclass(slots=True, frozen=True)
class Death:
    """struck_s: of `time.monotonic`. streams: those that were open; they go on after it."""

    struck_s: float
    kind: str
    streams: list[Answer]


@dataclass(slots=True)
class Run:
    """flying: answers that are being received. open: whether clients may ask. pieces: texts received, per second."""

    daemon: DaemonProcess
    known: list[Known]
    seed: int
    openai: openai.AsyncOpenAI
    started_s: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, Any]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    flying: list[Answer] = field(default_factory=list)
    pieces: Counter[int] = field(default_factory=Counter)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return self.daemon.url

    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.started_s

    def pauses(self) -> list[Pause]:
        """Of all deaths; complete when all answers are."""
        return [
            Pause(
                round(death.struck_s - self.started_s, 3),
                death.kind,
                tuple(
                    round(next_s - death.struck_s, 3)
                    for stream in death.streams
                    if (next_s := _next_after(stream, death.struck_s + _ON_THE_WAY_S)) is not None
                ),
            )
            for death in self.deaths
        ]

    def of_use(self, use: Use) -> list[Known]:
        return [known for known in self.known if known.use == use]

    def note_fault(self, kind: str, **detail: Any) -> None:
        self.counts[f"fault {kind}"] += 1
        self.faults.append(Fault(round(self.now_s(), 3), kind, detail))

    def violate(self, problem: str, **detail: Any) -> None:
        self.counts["violations"] += 1
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append({"at_s": round(self.now_s(), 3), "problem": problem, **detail})

    @contextmanager
    def flight(self) -> Iterator[Answer]:
        """An answer that counts as being received until the block ends."""
        answer = Answer()
        self.flying.append(answer)
        try:
            yield answer
        finally:
            self.flying = [other for other in self.flying if other is not answer]
            for at_s in answer.times:
                self.pieces[int(at_s - self.started_s)] += 1

    def streams(self) -> list[Answer]:
        """Answers that have received text and are not complete."""
        return [answer for answer in self.flying if answer.times]


def _next_after(answer: Answer, time_s: float) -> float | None:
    return next((at_s for at_s in answer.times if at_s > time_s), None)
