"""A run from beginning to end: truth, warm-up, phases of load and faults with a quiet point after each, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import schedule, truth
from tests.chaos.catalogue import Case
from tests.chaos.checker import Known
from tests.chaos.client_faults import ClientFaults
from tests.chaos.daemon_process import daemon_process
from tests.chaos.engine_faults import EngineFaults
from tests.chaos.load import ANSWER_S, answered, work
from tests.chaos.openai_client import make_client
from tests.chaos.report import report
from tests.chaos.resources import Resources
from tests.chaos.run_state import Run

SLOW_CLIENT_S = 5
CLIENT_TIMEOUT_S = 5
SETTINGS: Mapping[str, Any] = {
    "max_num_seqs": 16,
    "max_queue": 40,
    "kv_memory": "32MB",
    "max_body_bytes": 1 << 20,
    "step_timeout_s": 3,
    "slow_client_s": SLOW_CLIENT_S,
    "client_timeout_s": CLIENT_TIMEOUT_S,
}
"""Of the daemon under test: no more rows than clients and a small pool, so that requests wait and are preempted."""
_TOGETHER = 8

Progress = Callable[[str, float, str], None]
"""Called with (stage, share done from 0 to 1, a few figures)."""


@dataclass(slots=True, frozen=True)
class Plan:
    """engine, client: faults a minute, by kind. quiet_points: phases, each with a check of what is left over.
    latest: a phase may last so many times what was planned: recovering takes as long as it takes.
    """

    name: str
    seed: int
    seconds: float
    cases: list[Case]
    engine: Mapping[str, float]
    client: Mapping[str, float]
    clients: int = 16
    quiet_points: int = 4
    latest: float = 1.5


async def carry_out(plan: Plan, out: Path, progress: Progress) -> dict[str, Any]:
    """The report."""
    known = await _truth(plan, out, progress)
    async with daemon_process(out, "daemon", dict(SETTINGS), faulty=True) as daemon:
        run = Run(daemon, known, plan.seed, make_client(daemon.url, ANSWER_S))
        resources = Resources(run)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(resources.watch())
            workers: list[asyncio.Task[None]] = []
            try:
                await _warm_up(run, progress)
                await _fall_quiet(run, resources)
                loaded_s = run.now_s()
                workers += [group.create_task(work(run, number)) for number in range(plan.clients)]
                for phase in range(plan.quiet_points):
                    if daemon.has_restarted():
                        break
                    await _phase(run, plan, phase, resources, progress)
            finally:
                for task in (watching, *workers):
                    task.cancel()
        slope = resources.check_slope(loaded_s + (run.now_s() - loaded_s) / 4)
        stats = await daemon.stats()
        if daemon.has_restarted():
            run.violate("the daemon restarted")
        await run.openai.close()
        status = await daemon.end()
        if status != 0:
            run.violate(f"the daemon ended with status {status}")
        if orphans := resources.orphans():
            run.violate(f"engines outlive the daemon: {orphans}")
    return report(plan.name, plan.seconds, run, resources, slope, stats)


async def _truth(plan: Plan, out: Path, progress: Progress) -> list[Known]:
    done: list[Known] = []

    def note(known: Known) -> None:
        done.append(known)
        progress("finding the true answers", len(done) / len(plan.cases), known.name)

    async with daemon_process(out, "truth", truth.SETTINGS, faulty=False) as daemon:
        return await truth.find_truth(daemon.url, plan.cases, note)


async def _warm_up(run: Run, progress: Progress) -> None:
    """Every case once, which also checks the truth of those that the load may never draw."""
    cases = iter([known for known in run.known if not known.use.startswith("poison")])

    async def ask_on() -> None:
        for known in cases:
            await answered(run, known, stream=True)
            await answered(run, known, stream=False, official=True)

    progress("warming up", 0.0, "")
    await asyncio.gather(*(ask_on() for _ in range(_TOGETHER)))
    progress("warming up", 1.0, "")


async def _phase(run: Run, plan: Plan, phase: int, resources: Resources, progress: Progress) -> None:
    """Load and faults for a while, then a quiet point."""
    length_s = plan.seconds / plan.quiet_points
    begun_s = run.now_s()
    seed = plan.seed * plan.quiet_points + phase
    run.open.set()
    ticking = asyncio.create_task(_tick(run, plan, phase, begun_s, progress))
    try:
        async with asyncio.TaskGroup() as lanes:
            engine = schedule.plan(seed, "engine", length_s, plan.engine)
            lanes.create_task(EngineFaults(run).drive(engine, begun_s + plan.latest * length_s))
            client = schedule.plan(seed, "client", length_s, plan.client)
            lanes.create_task(ClientFaults(run, SLOW_CLIENT_S, CLIENT_TIMEOUT_S).drive(client))
            lanes.create_task(asyncio.sleep(length_s))
    finally:
        ticking.cancel()
    await _fall_quiet(run, resources)


async def _fall_quiet(run: Run, resources: Resources) -> None:
    """Let what is in flight end, close what clients keep open, and see what is left."""
    run.open.clear()
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            while run.flying:  # noqa: ASYNC110 - there is no hurry
                await asyncio.sleep(0.1)
    await run.openai.close()
    run.openai = make_client(run.url, ANSWER_S)
    await resources.check_quiet()


async def _tick(run: Run, plan: Plan, phase: int, begun_s: float, progress: Progress) -> None:
    while True:
        share = (phase + min(1.0, (run.now_s() - begun_s) * plan.quiet_points / plan.seconds)) / plan.quiet_points
        faults, violations = len(run.faults), run.counts["violations"]
        figures = f"{run.counts['answers']} answers, {faults} faults, {violations} violations"
        progress(plan.name, share, figures)
        await asyncio.sleep(0.5)
