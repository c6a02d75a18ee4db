"""The price of the process boundary: decode rate of 16 streams and time to the first token, against in-process."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.decode import decode_rate
from tests.bench.model import Words, bench_model
from tests.bench.server import Daemon, ask, ask_all, daemon

PROMPT, NEW, SINGLES = 100, 128, 8
MODES = ("process", "inprocess")


async def _round(daemons: dict[str, Daemon], words: Words, seed: int, streams: int) -> dict[str, Any]:
    """The daemons take turns at single requests, then at all streams; both get the same texts."""
    ttft_s: dict[str, list[float]] = {mode: [] for mode in daemons}
    for i in range(SINGLES):
        for mode, running in daemons.items():
            ttft_s[mode].append((await ask(running.url, words.prompt(PROMPT, seed + i), 1)).ttft_s)
    texts = [words.prompt(PROMPT, seed + 100 + i) for i in range(streams)]
    row: dict[str, Any] = {}
    for mode, running in daemons.items():
        answers = await ask_all(running.url, texts, NEW)
        row[mode] = {"tok_s": decode_rate(answers), "ttft_s": median(ttft_s[mode])}
    for key in ("tok_s", "ttft_s"):
        row[f"{key}_ratio"] = row["process"][key] / row["inprocess"][key]
    row["ttft_added_s"] = row["process"]["ttft_s"] - row["inprocess"]["ttft_s"]
    return row


def run(out: Path, rounds: int = 7, streams: int = 16) -> dict[str, Any]:
    """Both daemons are up all the time, and take turns. The first round warms up."""
    folder = bench_model(out)
    words = Words(folder)
    rows = []
    with ExitStack() as stack:
        daemons = {
            mode: stack.enter_context(daemon(str(folder), "--kv-memory", "1GB", "--engine", mode)) for mode in MODES
        }
        for r in range(rounds + 1):
            in_turn = {mode: daemons[mode] for mode in (MODES if r % 2 else reversed(MODES))}
            rows.append(asyncio.run(_round(in_turn, words, 1000 * r, streams)))
    rows = rows[1:]
    medians: dict[str, Any] = {
        key: median(row[key] for row in rows) for key in ("tok_s_ratio", "ttft_s_ratio", "ttft_added_s")
    }
    for mode in MODES:
        medians[mode] = {key: median(row[mode][key] for row in rows) for key in ("tok_s", "ttft_s")}
    return {"streams": streams, "new_tokens": NEW, "median": medians, "rounds": rows}
