"""Decode rate of 16 streams with and without 200 other requests a second, for both places an engine may run in.

BLAS has one thread. On Linux with two cores or more, what computes has core 0 for itself and everything else (the
daemon, the clients, the generator of the noise) shares core 1, as if the model ran on a GPU. In-process, what computes
is every thread but the event loop's.

While the streams run, quiet and noisy windows take turns, and a noisy one is compared with its two neighbours: neither
the growing context nor a drift of the machine counts for either.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from tests.bench.model import Words, bench_model
from tests.bench.noise import RATE, WINDOW_S, noise, window_of
from tests.bench.server import Answer, Daemon, ask_all, daemon
from tests.bench.usage import cpu_s

PROMPT, NEW = 100, 640
COMPUTE, OTHERS = {0}, {1}
MODES = ("process", "inprocess")
CAN_PIN = hasattr(os, "sched_setaffinity") and {0, 1} <= os.sched_getaffinity(0)


def _pin(running: Daemon) -> None:
    """After a first answer, so that every thread exists; later threads inherit from the one that starts them."""
    engine = running.engine_pid
    for pid in running.pids.values():
        for task in Path(f"/proc/{pid}/task").iterdir():
            computes = pid == engine or (engine is None and int(task.name) != pid)
            os.sched_setaffinity(int(task.name), COMPUTE if computes else OTHERS)


async def _watch_cpu(pids: dict[str, int], seen: dict[int, dict[str, float]]) -> None:
    """CPU seconds of each process at the start of each window."""
    while True:
        window = window_of(time.monotonic()) + 1
        await asyncio.sleep(window * WINDOW_S - time.monotonic())
        seen[window] = {name: cpu_s(pid) for name, pid in pids.items()}


async def _stream(running: Daemon, texts: list[str], pids: dict[str, int]) -> dict[int, dict[str, float]]:
    """Token rate and cores used, by window; only windows in which all streams run."""
    cpu: dict[int, dict[str, float]] = {}
    watching = asyncio.create_task(_watch_cpu(pids, cpu))
    answers = await ask_all(running.url, texts, NEW)
    watching.cancel()
    return {
        window: {
            "tok_s": rate,
            **{f"{name}_cores": (cpu[window + 1][name] - cpu[window][name]) / WINDOW_S for name in pids},
        }
        for window, rate in _rates(answers).items()
        if window in cpu and window + 1 in cpu
    }


def _rates(answers: list[Answer]) -> dict[int, float]:
    """Tokens a second by window, from the first step in it to the first behind it: whole steps."""
    clock_s = time.monotonic() - time.perf_counter()
    times = sorted(t + clock_s for answer in answers for t in answer.times)
    per_chunk = mean(answer.tokens_per_chunk for answer in answers)
    first = window_of(max(answer.times[0] for answer in answers) + clock_s) + 1
    last = window_of(min(answer.times[-1] for answer in answers) + clock_s)
    rates = {}
    for window in range(first, last):
        start, end = bisect_left(times, window * WINDOW_S), bisect_left(times, (window + 1) * WINDOW_S)
        rates[window] = per_chunk * (end - start) / (times[end] - times[start])
    return rates


def _round(running: Daemon, texts: list[str]) -> dict[str, Any]:
    with noise(running.url, OTHERS if CAN_PIN else set()) as other:
        pids = {**running.pids, "clients": os.getpid(), "generator": other.pid}
        windows = asyncio.run(_stream(running, texts, pids))
    if other.wrong:
        raise RuntimeError(f"{other.wrong} requests of the noise got another status than they should")
    ratios = [
        here["tok_s"] / mean((windows[window - 1]["tok_s"], windows[window + 1]["tok_s"]))
        for window, here in windows.items()
        if window % 2 and window - 1 in windows and window + 1 in windows
    ]
    kinds = {"quiet": 0, "noisy": 1}
    return {
        "ratios": ratios,
        "requests_s": other.requests_s,
        **{kind: _medians([row for w, row in windows.items() if w % 2 == odd]) for kind, odd in kinds.items()},
    }


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: median(row[key] for row in rows) for key in rows[0]}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [ratio for row in rows for ratio in row["ratios"]]
    low, _, high = quantiles(ratios, n=4)
    return {
        "ratio": median(ratios),
        "ratio_quartiles": [low, high],
        "windows": len(ratios),
        "requests_s": median(row["requests_s"] for row in rows),
        **{kind: _medians([row[kind] for row in rows]) for kind in ("quiet", "noisy")},
    }


def run(out: Path, rounds: int = 5, streams: int = 16) -> dict[str, Any]:
    """Both daemons are up all the time, and take turns."""
    folder = bench_model(out)
    words = Words(folder)
    allowed = os.sched_getaffinity(0) if CAN_PIN else set()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        flags = ("--kv-memory", "1GB", "--engine")
        daemons = {
            mode: stack.enter_context(daemon(str(folder), *flags, mode, OPENBLAS_NUM_THREADS="1")) for mode in MODES
        }
        for running in daemons.values():
            asyncio.run(ask_all(running.url, [words.prompt(PROMPT, i) for i in range(streams)], 64))
            if CAN_PIN:
                _pin(running)
        if CAN_PIN:
            os.sched_setaffinity(0, OTHERS)
            stack.callback(os.sched_setaffinity, 0, allowed)
        for r in range(rounds):
            texts = [words.prompt(PROMPT, 1000 * (r + 1) + i) for i in range(streams)]
            rows.append({mode: _round(daemons[mode], texts) for mode in (MODES if r % 2 else reversed(MODES))})
    return {
        "streams": streams,
        "new_tokens": NEW,
        "asked_requests_s": RATE,
        "window_s": WINDOW_S,
        "pinned": CAN_PIN,
        "median": {mode: _summary([row[mode] for row in rows]) for mode in MODES},
        "rounds": rows,
    }
