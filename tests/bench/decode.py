"""Decode rate of 16 streams over HTTP against the bare dense loop at the same batch and lengths."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.dense import dense_loop
from tests.bench.model import Words, bench_model, load, token_prompt
from tests.bench.server import Answer, ask_all, server

PROMPT, NEW = 100, 128


def decode_rate(answers: list[Answer]) -> float:
    """Tokens per second between the moment the last stream has its first token and the end."""
    all_started = max(a.times[0] for a in answers)
    end = max(a.times[-1] for a in answers)
    tokens = sum(a.tokens_per_chunk * sum(t > all_started for t in a.times) for a in answers)
    return tokens / (end - all_started)


def run(out: Path, rounds: int = 5, streams: int = 16) -> dict[str, Any]:
    """Rounds in turn, dense then HTTP, so that a drift of the machine meets both."""
    folder = bench_model(out)
    model, words = load(folder), Words(folder)
    rows = []
    with server(folder, "--kv-memory", "1GB") as url:
        for r in range(rounds + 1):
            prefill_s, dense = dense_loop(model, [token_prompt(PROMPT, 97 * r + i) for i in range(streams)], NEW)
            texts = [words.prompt(PROMPT - 8, 1000 * r + i) for i in range(streams)]
            answers = asyncio.run(ask_all(url, texts, NEW))
            if r:  # the first round warms both up
                row = {"dense_tok_s": dense, "http_tok_s": decode_rate(answers)}
                row["ratio"] = row["http_tok_s"] / dense
                row["dense_prefill_s"] = prefill_s
                row["http_prefill_s"] = max(a.times[0] for a in answers) - min(a.started_s for a in answers)
                rows.append(row)
    summary = {key: median(row[key] for row in rows) for key in rows[0]}
    prompt_tokens = answers[0].usage["prompt_tokens"]
    return {"streams": streams, "prompt_tokens": prompt_tokens, "new_tokens": NEW, "median": summary, "rounds": rows}
