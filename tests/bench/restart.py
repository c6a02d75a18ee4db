"""kill -9 of the engine in the middle of 16 streams: how long the clients wait, for what, and what they read."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from mlx_server.core.messages import EngineInfo
from mlx_server.core.settings import Settings
from mlx_server.engine.engine_process import EngineEvents, EngineProcess
from mlx_server.engine.supervisor import ENGINE_COMMAND
from tests.bench.model import Words, bench_model
from tests.bench.server import Answer, Daemon, ask_all, ask_into, daemon
from tests.bench.usage import rss_mb

PROMPT, NEW, KILL_AT = 100, 128, 48
KV = "1GB"


async def _kill_round(running: Daemon, texts: list[str]) -> tuple[dict[str, float], list[str]]:
    """The engine is killed when every stream has `KILL_AT` chunks. Also the texts that came."""
    engine = running.engine_pid
    assert engine is not None
    answers = [Answer(time.perf_counter()) for _ in texts]
    async with asyncio.TaskGroup() as group:
        for answer, text in zip(answers, texts, strict=True):
            group.create_task(ask_into(answer, running.url, text, NEW))
        while min(len(answer.times) for answer in answers) < KILL_AT:  # noqa: ASYNC110 - it may be a little late
            await asyncio.sleep(0.005)
        os.kill(engine, signal.SIGKILL)
        killed_s = time.perf_counter()
    gaps = [max(pairwise(answer.times), key=lambda gap: gap[1] - gap[0]) for answer in answers]
    pauses = [after - before for before, after in gaps]
    back = [after for _, after in gaps]
    row = {
        "pause_median_s": median(pauses),
        "pause_longest_s": max(pauses),
        "first_token_s": min(back) - killed_s,
        "last_stream_s": max(back) - killed_s,
    }
    return row, [answer.text for answer in answers]


async def _start_engine(folder: Path, is_proven: bool) -> dict[str, float]:
    """Seconds until the process has imported its code and begins to read weights, and from there until it is ready."""
    marks: list[float] = []
    loaded = asyncio.Event()

    def note_loaded(info: EngineInfo) -> None:
        marks.append(time.perf_counter())
        loaded.set()

    events = EngineEvents(
        progress=lambda stage, fraction: marks.append(time.perf_counter()),
        loaded=note_loaded,
        deltas=lambda deltas: None,
        refused=lambda attempt, error: None,
        died=lambda death: None,
    )
    settings = Settings(kv_memory=1 << 30, log_level="warning")
    started_s = time.perf_counter()
    process = await EngineProcess.spawn(ENGINE_COMMAND, settings, folder, "bench", is_proven, events)
    try:
        async with asyncio.timeout(60):
            await loaded.wait()
    finally:
        await process.stop()
    return {"process_s": marks[0] - started_s, "load_s": marks[-1] - marks[0]}


def run(out: Path, rounds: int = 5, streams: int = 16) -> dict[str, Any]:
    """Each round has texts of its own, first undisturbed with the same engine that is then killed.

    The first round warms up; its texts count all the same.
    """
    logging.getLogger("mlx_server").setLevel(logging.CRITICAL)
    folder = bench_model(out)
    words = Words(folder)
    rows, memory = [], []
    with daemon(str(folder), "--kv-memory", KV) as running:
        for r in range(rounds + 1):
            texts = [words.prompt(PROMPT, 1000 * r + i) for i in range(streams)]
            true = [answer.text for answer in asyncio.run(ask_all(running.url, texts, NEW))]
            memory.append({f"{part}_mb": rss_mb(pid) for part, pid in running.pids.items()})
            row, read = asyncio.run(_kill_round(running, texts))
            rows.append({**row, "equal_texts": sum(a == b for a, b in zip(read, true, strict=True))})
        pids = running.pids.values()
    left = [pid for pid in pids if psutil.pid_exists(pid)]
    starts = {
        name: [asyncio.run(_start_engine(folder, is_proven)) for _ in range(rounds)]
        for name, is_proven in (("proven", True), ("probed", False))
    }
    equal = sum(int(row.pop("equal_texts")) for row in rows)
    texts_read = streams * len(rows)
    rows = rows[1:]
    return {
        "streams": streams,
        "new_tokens": NEW,
        "median": {key: median(row[key] for row in rows) for key in rows[0]},
        "longest_pause_s": max(row["pause_longest_s"] for row in rows),
        "texts": texts_read,
        "equal_texts": equal,
        "start": {name: {key: median(start[key] for start in of) for key in of[0]} for name, of in starts.items()},
        "memory": memory,
        "processes_left": len(left),
        "rounds": rows,
    }
