"""Kill the engine in the middle of 16 streams, again and again: do all end with the text they would have had?"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tests.chaos import truth
from tests.chaos.answer import Answer
from tests.chaos.campaign import Progress
from tests.chaos.catalogue import catalogue
from tests.chaos.checker import Known, check_complete
from tests.chaos.daemon_process import DaemonProcess, daemon_process
from tests.chaos.http_client import ask

KILLS = 5
STREAMS = 16
PIECES_BEFORE = 40
"""Pieces of text that every stream has when the engine is killed."""
_WAIT_S = 120


async def measure(out: Path, seed: int, progress: Progress) -> dict[str, Any]:
    """Gaps in seconds: the longest between two pieces of text of each stream."""
    cases = [case for case in catalogue(seed, size=0, streams=STREAMS) if case.use == "long"]
    async with daemon_process(out, "truth", truth.SETTINGS, faulty=False) as daemon:
        known = await truth.find_truth(
            daemon.url, cases, lambda one: progress("finding the true answers", 0.0, one.name)
        )
    settings = {"max_num_seqs": STREAMS, "kv_memory": "64MB"}
    rounds = []
    async with daemon_process(out, "daemon", settings, faulty=True) as daemon:
        undisturbed = await _round(daemon, known, kill=False)
        for number in range(KILLS):
            rounds.append(await _round(daemon, known, kill=True))
            progress("killing the engine", (number + 1) / KILLS, f"longest gap {rounds[-1]['max_s']} s")
        stats = await daemon.stats()
    return {
        "run": "pause",
        "seed": seed,
        "streams": STREAMS,
        "passed": not any(one["problems"] for one in (undisturbed, *rounds)),
        "kills": KILLS,
        "median_gap_s": round(median(gap for one in rounds for gap in one["gaps_s"]), 3),
        "max_gap_s": max(one["max_s"] for one in rounds),
        "undisturbed": undisturbed,
        "rounds": rounds,
        "engine_stats": stats,
    }


async def _round(daemon: DaemonProcess, known: list[Known], kill: bool) -> dict[str, Any]:
    answers = [Answer() for _ in known]
    async with asyncio.timeout(_WAIT_S):
        asking = [
            asyncio.create_task(ask(daemon.url, one.body, stream=True, into=answer))
            for one, answer in zip(known, answers, strict=True)
        ]
        pid = (await daemon.stats())["pid"]
        killed_s = 0.0
        if kill:
            while min(len(answer.times) for answer in answers) < PIECES_BEFORE:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            os.kill(pid, signal.SIGKILL)
            killed_s = time.monotonic()
        await asyncio.gather(*asking)
    problems = [
        f"{one.name}: {problem}"
        for one, answer in zip(known, answers, strict=True)
        for problem in check_complete(one, answer, stream=True)
    ]
    if kill and min(answer.times[-1] for answer in answers) < killed_s:
        problems.append("a stream was complete before the engine was killed")
    gaps = [round(max(b - a for a, b in pairwise(answer.times)), 3) for answer in answers]
    return {"problems": problems, "median_s": round(median(gaps), 3), "max_s": max(gaps), "gaps_s": gaps}
