"""The headline figures that serving articles quote, measured on the same work with this engine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from mlx_server.core.messages import GenerateRequest, SamplingParams
from mlx_server.core.step import BLOCK_SIZE, SampledToken, StepResult
from mlx_server.services.batching.config import SchedulerConfig
from mlx_server.services.batching.request import blocks_for
from mlx_server.services.batching.scheduler import Scheduler
from tests.bench.model import bench_model, token_prompt
from tests.step_driver import StepDriver


def _row(name: str, claimed: float, measured: float, unit: str, note: str = "") -> dict[str, Any]:
    return {"name": name, "claimed": claimed, "measured": round(measured, 3), "unit": unit, "note": note}


def _paging() -> list[dict[str, Any]]:
    lengths, longest = (200, 50, 1500), 2048
    used = sum(lengths)
    paged = sum(blocks_for(n) for n in lengths) * BLOCK_SIZE
    rng = random.Random(3)
    many = [rng.randint(1, longest) for _ in range(10_000)]
    return [
        _row(
            "KV waste of 3 requests, paged",
            1.5,
            100 * (1 - used / paged),
            "%",
            "71.5 % contiguous; 1.5 % is with 16-token pages",
        ),
        _row(
            "KV waste of random lengths, paged",
            4.0,
            100 * (1 - sum(many) / (sum(blocks_for(n) for n in many) * BLOCK_SIZE)),
            "%",
        ),
        _row(
            "requests in the same KV memory",
            6.8,
            longest / (sum(blocks_for(n) for n in _chat_lengths()) * BLOCK_SIZE / len(_chat_lengths())),
            "x",
            "mean length about 300 of a 2048 maximum",
        ),
    ]


def _chat_lengths() -> list[int]:
    rng = random.Random(4)
    return [min(2048, max(16, int(rng.lognormvariate(5.4, 0.75)))) for _ in range(10_000)]


def _prefix_reuse(requests: int = 1000, together: int = 8) -> dict[str, Any]:
    """A 500-token system prompt, queries of 50 tokens on average, eight at a time; scheduler and cache only."""
    scheduler = Scheduler(
        SchedulerConfig(
            model_identity="m", num_blocks=8192, max_model_len=4096, eos_token_ids=frozenset(), step_target_s=9e9
        )
    )
    rng = random.Random(5)
    system = token_prompt(500, 1)
    left = [system + tuple(rng.randrange(10, 8000) for _ in range(rng.randint(20, 80))) for _ in range(requests)]
    now = 0.0
    while left or scheduler.has_work:
        while left and scheduler.stats().running + scheduler.stats().waiting < together:
            name = str(len(left))
            params = SamplingParams(max_tokens=16)
            scheduler.add(GenerateRequest(request_id=name, prompt_token_ids=left.pop(), sampling=params), now)
        now += 0.01
        plan = scheduler.schedule(now)
        if plan is not None:
            sampled = tuple(SampledToken(rng.randrange(10, 8000)) for s in plan.segments if s.sample)
            scheduler.update(plan, StepResult(plan.step_id, sampled, 0.01))
    stats = scheduler.stats()
    reuse = 100 * stats.cached_tokens / stats.prompt_tokens
    return _row("prompt tokens not recomputed, shared system prompt", 91, reuse, "%", "whole blocks alone: 87 %")


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _continuous(driver: StepDriver, lengths: list[int], rows: int, claimed: float, name: str) -> list[dict[str, Any]]:
    """The same requests in fixed batches, each waiting for its longest member, and continuously."""

    def serve(batches: list[list[int]]) -> tuple[float, int]:
        start, steps = time.perf_counter(), 0
        for batch in batches:
            driver.fresh(num_blocks=512, max_num_seqs=rows, max_queue=1000)
            for i, n in enumerate(batch):
                driver.add(f"{i}", token_prompt(16, i), n)
            driver.run()
            steps += driver.scheduler.counters.steps
        return time.perf_counter() - start, steps

    static = [lengths[i : i + rows] for i in range(0, len(lengths), rows)]
    serve([lengths])
    static_s, static_steps = serve(static)
    continuous_s, continuous_steps = serve([lengths])
    name = f"continuous against static batching, {name}"
    return [
        _row(f"{name}: steps", claimed, static_steps / continuous_steps, "x"),
        _row(
            f"{name}: time",
            claimed,
            static_s / continuous_s,
            "x",
            "a step with few rows is cheaper, so less than steps",
        ),
    ]


def _chunked(driver: StepDriver, rounds: int = 5, shorts: tuple[int, ...] = (50, 100)) -> list[dict[str, Any]]:
    """Two short requests that arrive right behind a 2000-token prompt: time to their first token."""

    def waits(**config: Any) -> tuple[list[float], float]:
        driver.fresh(num_blocks=512, **config)
        driver.add("first", token_prompt(300, 2), 1)  # the scheduler learns how fast this machine is
        driver.run()
        start = time.perf_counter()
        driver.add("long", token_prompt(2000, 1), 1)
        for i, n in enumerate(shorts):
            driver.add(f"s{i}", token_prompt(n, 10 + i), 1)
        first: dict[str, float] = {}
        more = True
        while more:
            more = driver.step()
            for name, outcome in driver.outcomes.items():
                if outcome.finish_reason is not None:
                    first.setdefault(name, time.perf_counter() - start)
        return [t for name, t in first.items() if name.startswith("s")], max(first.values())

    waits(max_num_batched_tokens=256)
    whole, parts, totals = [], [], []
    for _ in range(rounds):
        waited, total = waits(max_num_batched_tokens=4096)
        whole += waited
        chunked_wait, chunked_total = waits(max_num_batched_tokens=256)
        parts += chunked_wait
        totals.append(chunked_total / total)
    return [
        _row("chunked prefill: mean wait of short requests", 8.3, mean(whole) / mean(parts), "x"),
        _row("chunked prefill: worst wait", 6.7, max(whole) / max(parts), "x"),
        _row("chunked prefill: cost in total time", 5, 100 * (median(totals) - 1), "%"),
    ]


def _shared_prefix(driver: StepDriver) -> dict[str, Any]:
    """Twelve requests with a common 500-token start, one after the other, with the cache and without."""

    def serve(enabled: bool) -> float:
        driver.fresh(num_blocks=1024, prefix_cache=enabled)
        system = token_prompt(500, 1)

        def run() -> None:
            for i in range(12):
                driver.add(f"r{i}", system + token_prompt(50, 100 + i), 1)
                driver.run()

        return _timed(run)

    serve(True)
    return _row("shared prefixes, time of the whole work", 5.8, serve(False) / serve(True), "x")


def run(out: Path, rounds: int = 1) -> dict[str, Any]:
    """One row per figure, with what was claimed for it elsewhere."""
    driver = StepDriver(bench_model(out))
    driver.steps_in_flight = 1  # as the generation thread runs on the CPU backend
    rng = random.Random(6)
    mixed = [rng.randint(5, 20) for _ in range(64)]
    tail = [100 if i % 10 == 0 else rng.randint(5, 10) for i in range(80)]
    rows = [
        *_paging(),
        _prefix_reuse(),
        _shared_prefix(driver),
        *_continuous(driver, mixed, 8, 1.67, "5-20 tokens"),
        *_continuous(driver, tail, 8, 4.0, "long tail"),
        *_chunked(driver),
    ]
    return {"rows": rows}
