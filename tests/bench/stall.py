"""The longest gap of a running stream while a 6k-token prompt is admitted beside it, and what that costs the prompt."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.model import Words, bench_model
from tests.bench.server import Answer, ask, server

LONG = 6000


def _gaps(times: list[float], start: float, end: float) -> list[float]:
    inside = [t for t in times if start <= t <= end]
    return [b - a for a, b in pairwise(inside)]


async def _round(url: str, words: Words, seed: int) -> dict[str, Any]:
    alone = await ask(url, words.prompt(LONG, seed), 1)
    stream = asyncio.create_task(ask(url, words.prompt(100, seed + 1), 600))
    await asyncio.sleep(2.0)  # a measurement, not a test: the stream runs undisturbed for a while
    start = time.perf_counter()
    beside = await ask(url, words.prompt(LONG, seed + 2), 1)
    end = beside.times[0]
    running: Answer = await stream
    before, during = _gaps(running.times, 0, start), _gaps(running.times, start - 0.2, end + 0.2)
    return {
        "median_gap_s": median(before),
        "longest_gap_s": max(during),
        "median_gap_during_s": median(during),
        "limit_s": max(10 * median(before), 0.3),
        "admission_alone_s": alone.ttft_s,
        "admission_beside_s": beside.ttft_s,
        "admission_ratio": beside.ttft_s / alone.ttft_s,
        "token_times_s": [t - start for t in running.times],
        "admitted_s": end - start,
    }


def run(out: Path, rounds: int = 3) -> dict[str, Any]:
    """The first round warms up."""
    folder = bench_model(out)
    words = Words(folder)
    with server(folder, "--kv-memory", "1GB") as url:
        rows = [asyncio.run(_round(url, words, 104729 * r)) for r in range(rounds + 1)][1:]
    numbers = [key for key, value in rows[0].items() if isinstance(value, float)]
    return {"prompt_tokens": LONG, "median": {k: median(r[k] for r in rows) for k in numbers}, "rounds": rows}
