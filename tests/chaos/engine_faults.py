"""Faults of the engine. One at a time: two at once could make the daemon suspect a request that did nothing.

After each, every stream that was open and has a row goes on; then comes the next.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.chaos.answer import Answer
from tests.chaos.checker import check_failed
from tests.chaos.load import ask, violate
from tests.chaos.mailbox import Mailbox
from tests.chaos.run_state import Death, Run
from tests.chaos.schedule import Planned

RECOVER_S = 60
"""Longest until another engine answers."""
SETTLE_S = 6.0
"""Longest that the next fault waits for the streams of the one before."""
_TAKEN_S = 10
_POLL_S = 0.1
_MORE_PIECES = 2
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "abort": signal.SIGABRT, "segv": signal.SIGSEGV}
_CLOCK_JUMPS_S = (3600.0, -3600.0)


class EngineFaults:
    """The lane. It may fall behind its schedule; what is still due at `until_s` of the run is left out."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._mailbox = Mailbox(run.daemon.mailbox)
        self._kinds: dict[str, Callable[[Planned], Awaitable[None]]] = {
            **dict.fromkeys(_SIGNALS, self._signal),
            "hang": self._hang,
            "poison_raise": self._poison,
            "poison_abort": self._poison,
            "raise_launch": self._order,
            "raise_finish": self._order,
            "malloc": self._order,
            "engine_clock": self._order,
        }

    async def drive(self, planned: Sequence[Planned], until_s: float) -> None:
        """Carry them out, none before its time."""
        begun_s = self._run.now_s()
        for fault in planned:
            await asyncio.sleep(begun_s + fault.at_s - self._run.now_s())
            if self._run.now_s() > until_s:
                self._run.counts["faults left out for lack of time"] += 1
                continue
            try:
                await self._kinds[fault.kind](fault)
            except (TimeoutError, ProcessLookupError) as error:
                self._run.violate(f"'{fault.kind}' found no engine: {type(error).__name__}")

    async def _signal(self, fault: Planned) -> None:
        pid = await self._pid()
        watched = self._watched()
        struck_s = time.monotonic()
        os.kill(pid, _SIGNALS[fault.kind])
        self._run.note_fault(fault.kind, pid=pid)
        await self._replaced(fault.kind, pid, watched, struck_s)

    async def _hang(self, fault: Planned) -> None:
        pid = await self._pid()
        self._mailbox.put({"kind": "hang"})
        if not await self._mailbox.wait_taken(_TAKEN_S):
            self._run.counts["faults nobody took"] += 1
            return
        watched = self._watched()
        struck_s = time.monotonic()
        self._run.note_fault("hang", pid=pid)
        await self._replaced("hang", pid, watched, struck_s)

    async def _order(self, fault: Planned) -> None:
        """A step that fails once, or a jump of the engine's clock."""
        by_s = random.Random(fault.seed).choice(_CLOCK_JUMPS_S)
        self._mailbox.put({"kind": fault.kind, "by_s": by_s})
        if not await self._mailbox.wait_taken(_TAKEN_S):
            self._run.counts["faults nobody took"] += 1
            return
        self._run.note_fault(fault.kind, **({"by_s": by_s} if fault.kind == "engine_clock" else {}))
        await self._go_on(self._watched())

    async def _poison(self, fault: Planned) -> None:
        """A request that fails whatever is tried: it alone ends with an error."""
        rng = random.Random(fault.seed)
        known = rng.choice(self._run.of_use("poison_raise" if fault.kind == "poison_raise" else "poison_abort"))
        stream = rng.random() < 0.5
        watched = self._watched()
        self._run.note_fault(fault.kind, case=known.name, stream=stream)
        before = await self._run.daemon.stats()
        answer = await ask(self._run, known, stream)
        after = await self._run.daemon.stats()
        deaths = after.get("restarts", 0) - before.get("restarts", 0)
        self._run.counts[f"restarts for the sake of {fault.kind}"] += deaths
        if problems := check_failed(known, answer):
            violate(self._run, known, stream, False, problems, answer)
        await self._go_on(watched)

    async def _pid(self) -> int:
        """Process id of a living engine. Raises `TimeoutError`."""
        async with asyncio.timeout(RECOVER_S):
            while not (pid := await self._run.daemon.engine_pid()):  # noqa: ASYNC110 - another process has no events for us
                await asyncio.sleep(_POLL_S)
        return pid

    def _watched(self) -> list[tuple[Answer, int]]:
        return [(answer, len(answer.times)) for answer in self._run.streams()]

    async def _replaced(self, kind: str, pid: int, watched: list[tuple[Answer, int]], struck_s: float) -> None:
        """Wait for another engine, and for the streams that the dead one left."""
        self._run.deaths.append(Death(struck_s, kind, [answer for answer, _ in watched]))
        try:
            async with asyncio.timeout(RECOVER_S):
                while await self._pid() == pid:  # noqa: ASYNC110 - another process has no events for us
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            self._run.violate(f"no other engine came within {RECOVER_S} s of '{kind}'", pid=pid)
            return
        await self._go_on(watched)

    async def _go_on(self, watched: list[tuple[Answer, int]]) -> None:
        """Wait until each stream has ended or got on by some pieces; not for those that wait for a row meanwhile."""
        ends_s = time.monotonic() + SETTLE_S
        waiting = watched
        while waiting and time.monotonic() < ends_s:
            await asyncio.sleep(_POLL_S)
            waiting = [
                (answer, count)
                for answer, count in waiting
                if len(answer.times) < count + _MORE_PIECES and any(answer is other for other in self._run.flying)
            ]
