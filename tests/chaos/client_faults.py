"""Faults of clients: they go away, do not read, send nonsense, come all at once. They run beside each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tests.chaos.answer import Answer
from tests.chaos.checker import Known, check_complete, check_prefix
from tests.chaos.http_client import FramingError, chat_bytes, connect, read_head
from tests.chaos.load import ANSWER_S, answered, ask, violate
from tests.chaos.malformed import MALFORMED
from tests.chaos.run_state import Run
from tests.chaos.schedule import Planned

BURST = 90
"""Requests at once."""
BURST_TOKENS = 24
"""At most, of each; long answers would keep the queue full for the rest of the run."""
REFUSE_S = 30
"""Longest until a request that is wrong, or never comes, is refused or closed."""
LONGEST_S = 2 * ANSWER_S
PAUSE_S = 2.0
UNREAD_S = 15
"""In which an answer for a slow reader grows beyond what the sockets hold, on a busy machine."""


class ClientFaults:
    """The lane. slow_client_s, client_timeout_s: as the daemon's settings of these names."""

    def __init__(self, run: Run, slow_client_s: float, client_timeout_s: float) -> None:
        self._run = run
        self._slow_client_s = slow_client_s
        self._client_timeout_s = client_timeout_s
        self._bad = 0
        self._kinds: dict[str, Callable[[random.Random], Awaitable[None]]] = {
            "disconnect_prefill": self._disconnect_prefill,
            "disconnect_stream": self._disconnect_stream,
            "disconnect_whole": self._disconnect_whole,
            "slow_pause": self._slow_pause,
            "slow_forever": self._slow_forever,
            "malformed": self._malformed,
            "half_open": self._half_open,
            "burst": self._burst,
            "daemon_clock": self._daemon_clock,
        }

    async def drive(self, planned: Sequence[Planned]) -> None:
        """Begin each at its time; return when all have ended."""
        begun_s = self._run.now_s()
        async with asyncio.TaskGroup() as group:
            for fault in planned:
                await asyncio.sleep(begun_s + fault.at_s - self._run.now_s())
                group.create_task(self._one(fault))

    async def _one(self, fault: Planned) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                await self._kinds[fault.kind](random.Random(fault.seed))
        except TimeoutError:
            self._run.violate(f"'{fault.kind}' had no end within {LONGEST_S} s", seed=fault.seed)
        except OSError as error:
            self._run.violate(f"'{fault.kind}' could not connect: {error}", seed=fault.seed)

    async def _disconnect_prefill(self, rng: random.Random) -> None:
        """Gone before the first token of a long prompt."""
        longest = sorted(self._run.of_use("load"), key=lambda known: -known.prompt_tokens)[:10]
        await self._leave_after("disconnect_prefill", rng.choice(longest), rng.random() * 0.05, rng.random() < 0.5)

    async def _disconnect_whole(self, rng: random.Random) -> None:
        """Gone while a whole answer is being made."""
        await self._leave_after("disconnect_whole", rng.choice(self._run.of_use("long")), 0.05 + rng.random(), False)

    async def _leave_after(self, kind: str, known: Known, seconds: float, stream: bool) -> None:
        _, writer = await connect(self._run.url)
        writer.write(chat_bytes(self._run.url, known.body, stream))
        await writer.drain()
        await asyncio.sleep(seconds)
        self._run.note_fault(kind, case=known.name, after_s=round(seconds, 3))
        writer.transport.abort()

    async def _disconnect_stream(self, rng: random.Random) -> None:
        known = rng.choice(self._run.of_use("long"))
        pieces = rng.randint(1, 60)
        gone = partial(_has_pieces, pieces)
        answer = await ask(self._run, known, stream=True, break_off=gone)
        self._run.note_fault("disconnect_stream", case=known.name, pieces=pieces)
        problems = check_prefix(known, answer) if answer.broken_off else [f"it ended by itself: {answer.brief()}"]
        if problems:
            violate(self._run, known, True, False, problems, answer, pieces=pieces)

    async def _slow_pause(self, rng: random.Random) -> None:
        """Reads nothing for a while, shorter than the daemon bears, and then gets all the rest."""
        known = rng.choice(self._run.of_use("slow"))
        self._run.note_fault("slow_pause", case=known.name)
        answer = await ask(self._run, known, stream=True, pause=(rng.randint(1, 20), PAUSE_S))
        if problems := check_complete(known, answer, stream=True):
            violate(self._run, known, True, False, problems, answer, pause_s=PAUSE_S)

    async def _slow_forever(self, rng: random.Random) -> None:
        """Reads nothing for longer than the daemon bears. What there was to read is a beginning of the truth."""
        known = rng.choice(self._run.of_use("slow"))
        self._run.note_fault("slow_forever", case=known.name)
        pause_s = self._slow_client_s + UNREAD_S
        answer = await ask(self._run, known, stream=True, pause=(rng.randint(1, 20), pause_s))
        dropped = answer.transport is not None or answer.error is not None
        self._run.counts["slow readers dropped" if dropped else "slow readers that got all"] += 1
        problems = check_prefix(known, answer) if dropped else check_complete(known, answer, stream=True)
        if problems:
            violate(self._run, known, True, False, problems, answer, pause_s=pause_s)

    async def _malformed(self, rng: random.Random) -> None:
        names = sorted(MALFORMED)
        name = names[self._bad % len(names)]
        self._bad += 1
        self._run.note_fault("malformed", name=name)
        try:
            async with asyncio.timeout(REFUSE_S):
                status = await self._refusal(MALFORMED[name](self._run.url))
        except TimeoutError:
            self._run.violate(f"'{name}' was not refused within {REFUSE_S} s")
            return
        if status is not None and not 400 <= status < 500:
            self._run.violate(f"'{name}' got status {status}")

    async def _refusal(self, data: bytes) -> int | None:
        """Status of the answer; None when the connection was closed without one."""
        reader, writer = await connect(self._run.url)
        try:
            writer.write(data)
            status, _ = await read_head(reader)
        except (OSError, EOFError):
            return None
        except (asyncio.LimitOverrunError, FramingError):
            return 599
        finally:
            writer.transport.abort()
        return status

    async def _half_open(self, rng: random.Random) -> None:
        """A request that never comes to its end: the daemon must close the connection."""
        good = chat_bytes(self._run.url, self._run.known[0].body, stream=True)
        cut = rng.choice((0, 1, 20, good.index(b"\r\n\r\n") + 4, len(good) - 1))
        self._run.note_fault("half_open", bytes=cut)
        reader, writer = await connect(self._run.url)
        limit_s = self._client_timeout_s + REFUSE_S
        try:
            writer.write(good[:cut])
            async with asyncio.timeout(limit_s):
                await reader.read()
        except OSError:
            return
        except TimeoutError:
            self._run.violate(f"a connection with {cut} bytes of a request was open after {limit_s} s")
        finally:
            writer.transport.abort()

    async def _burst(self, rng: random.Random) -> None:
        """More at once than may wait. Those refused come again."""
        short = [known for known in self._run.of_use("load") if known.completion_tokens <= BURST_TOKENS]
        known = [rng.choice(short) for _ in range(BURST)]
        self._run.note_fault("burst", requests=BURST)
        await asyncio.gather(*(answered(self._run, one, stream=rng.random() < 0.5) for one in known))

    async def _daemon_clock(self, rng: random.Random) -> None:
        self._run.note_fault("daemon_clock")
        self._run.daemon.jump_clock()


def _has_pieces(count: int, answer: Answer) -> bool:
    return len(answer.times) >= count
