"""Time to the first token: cold, exact repeat, shared prefix with a new suffix."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.model import Words, bench_model
from tests.bench.server import ask, server

PREFIX, SUFFIX = 1000, 100


async def _round(url: str, words: Words, seed: int) -> dict[str, float]:
    base = words.prompt(PREFIX, seed)
    suffix = words.prompt(SUFFIX, seed + 500)
    suffix_alone = await ask(url, suffix, 1)
    cold = await ask(url, base, 1)
    repeat = await ask(url, base, 1)
    shared = await ask(url, base + suffix, 1)
    return {
        "cold_s": cold.ttft_s,
        "repeat_s": repeat.ttft_s,
        "suffix_cold_s": suffix_alone.ttft_s,
        "shared_s": shared.ttft_s,
        "repeat_over_cold": repeat.ttft_s / cold.ttft_s,
        "shared_over_suffix": shared.ttft_s / suffix_alone.ttft_s,
        "repeat_computed": repeat.usage["prompt_tokens"] - repeat.usage["prompt_tokens_details"]["cached_tokens"],
        "shared_computed": shared.usage["prompt_tokens"] - shared.usage["prompt_tokens_details"]["cached_tokens"],
    }


def run(out: Path, rounds: int = 7) -> dict[str, Any]:
    """Every round has texts of its own."""
    folder = bench_model(out)
    words = Words(folder)
    with server(folder, "--kv-memory", "1GB") as url:
        rows = [asyncio.run(_round(url, words, 7919 * r)) for r in range(rounds + 1)][1:]
    return {
        "prefix_tokens": PREFIX,
        "suffix_tokens": SUFFIX,
        "median": {key: median(row[key] for row in rows) for key in rows[0]},
        "rounds": rows,
    }
