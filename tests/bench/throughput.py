"""Engine throughput at rising concurrency, against one request at a time and the bare loop of the same batch."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from mlx_server.core.messages import GenerateRequest, SamplingParams
from mlx_server.core.settings import Settings
from mlx_server.engine.inproc import InProcessEngine
from tests.bench.dense import dense_loop
from tests.bench.model import bench_model, load, token_prompt

PROMPT, NEW = 100, 128


async def _generate(engine: InProcessEngine, name: str, seed: int) -> int:
    request = GenerateRequest(
        request_id=name,
        prompt_token_ids=token_prompt(PROMPT, seed),
        sampling=SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True),
    )
    return sum([len(delta.token_ids) async for delta in engine.generate(request)])


async def _batch(engine: InProcessEngine, size: int, seed: int) -> float:
    start = time.perf_counter()
    counts = await asyncio.gather(*(_generate(engine, f"{seed}-{i}", seed + i) for i in range(size)))
    return sum(counts) / (time.perf_counter() - start)


async def _run(out: Path, sizes: tuple[int, ...], rounds: int) -> list[dict[str, float]]:
    folder = bench_model(out)
    engine = InProcessEngine(Settings(kv_memory=1 << 30), folder, "bench")
    await engine.start()
    model = load(folder)
    rows = []
    try:
        await _batch(engine, 4, 1)
        for size in sizes:
            best: dict[str, float] = {"concurrent": size}
            for r in range(rounds):
                prompts = [token_prompt(PROMPT, 31 * size + 7 * r + i) for i in range(size)]
                prefill_s, decode = await asyncio.to_thread(dense_loop, model, prompts, NEW)
                dense = size * NEW / (prefill_s + size * (NEW - 1) / decode)
                rate = await _batch(engine, size, 100_000 * size + 1000 * r)
                best["dense_tok_s"] = max(best.get("dense_tok_s", 0), dense)
                best["engine_tok_s"] = max(best.get("engine_tok_s", 0), rate)
            best["over_dense"] = best["engine_tok_s"] / best["dense_tok_s"]
            best["over_one_at_a_time"] = best["engine_tok_s"] / (
                rows[0]["engine_tok_s"] if rows else best["engine_tok_s"]
            )
            rows.append(best)
    finally:
        await engine.close()
    return rows


def run(out: Path, rounds: int = 3) -> dict[str, Any]:
    """Best of the rounds, since the machine only ever takes time away. Prefill is included on both sides."""
    return {"prompt_tokens": PROMPT, "new_tokens": NEW, "rows": asyncio.run(_run(out, (1, 4, 8, 16, 32), rounds))}
