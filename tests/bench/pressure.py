"""A scripted memory pressure, normal, warn, critical and normal again, under load: does the footprint follow?"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import psutil

from mlx_server.core.messages import FinishReason, GenerateRequest, MemoryLevel, SamplingParams
from mlx_server.core.settings import Settings
from mlx_server.engine.supervisor import SupervisedEngine
from tests.bench.model import bench_model, token_prompt

SCRIPT = [
    (MemoryLevel.NORMAL, 12.0),
    (MemoryLevel.WARN, 6.0),
    (MemoryLevel.CRITICAL, 8.0),
    (MemoryLevel.NORMAL, 12.0),
]
"""Level, and for how many seconds."""

CLIENTS, PROMPT, NEW_TOKENS = 12, 600, 200
SAMPLE_S = 0.1
KV_MEMORY = 1 << 30

Answers = dict[str, tuple[int, ...]]


async def _ask(engine: SupervisedEngine, name: str, seed: int) -> tuple[int, ...]:
    tokens: list[int] = []
    request = GenerateRequest(
        request_id=name,
        prompt_token_ids=token_prompt(PROMPT, seed),
        sampling=SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True),
    )
    async for delta in engine.generate(request):
        tokens.extend(delta.token_ids)
    assert delta.finish_reason is FinishReason.LENGTH, delta
    return tuple(tokens)


async def _clients(engine: SupervisedEngine, until: asyncio.Event, answers: Answers) -> None:
    """Each asks for another text as soon as it has one. While memory is critical nobody begins."""

    async def client(number: int) -> None:
        turn = 0
        while not until.is_set():
            if (await engine.stats()).memory_level is MemoryLevel.CRITICAL:
                await asyncio.sleep(SAMPLE_S)
                continue
            name = f"{number}-{turn}"
            answers[name] = await _ask(engine, name, 1000 * number + turn)
            turn += 1

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))


async def _sample(engine: SupervisedEngine, started_s: float, until: asyncio.Event, samples: list[Any]) -> None:
    process = psutil.Process(engine.pid)
    while not until.is_set():
        stats = await engine.stats()
        samples.append(
            {
                "at_s": time.perf_counter() - started_s,
                "footprint_bytes": process.memory_info().rss,
                "pool_blocks": stats.pool_blocks,
                "used_blocks": stats.blocks_used,
                "cached_blocks": stats.blocks_cached,
                "active_bytes": stats.active_bytes,
                "running": stats.running,
                "waiting": stats.waiting,
                "preemptions": stats.preemptions,
                "level": int(stats.memory_level),
            }
        )
        await asyncio.sleep(SAMPLE_S)


async def _play(folder: Path) -> dict[str, Any]:
    engine = SupervisedEngine(Settings(kv_memory=KV_MEMORY, max_num_seqs=CLIENTS), folder, "bench")
    info = await engine.start()
    answers: Answers = {}
    samples: list[Any] = []
    over, sampled = asyncio.Event(), asyncio.Event()
    started_s = time.perf_counter()
    tasks = [
        asyncio.create_task(_clients(engine, over, answers)),
        asyncio.create_task(_sample(engine, started_s, sampled, samples)),
    ]
    changes = []
    for level, seconds in SCRIPT:
        changes.append({"at_s": time.perf_counter() - started_s, "level": int(level)})
        await engine.set_memory_level(level)
        await asyncio.sleep(seconds)
    over.set()
    await tasks[0]
    sampled.set()
    await tasks[1]
    truth = {name: await _alone(engine, name) for name in sorted(answers)[:: max(1, len(answers) // 24)]}
    block_bytes = info.block_size * info.kv_bytes_per_token
    await engine.close()
    return {
        "block_bytes": block_bytes,
        "budget_blocks": info.num_blocks,
        "changes": changes,
        "samples": samples,
        "answers": len(answers),
        "texts_checked": len(truth),
        "texts_wrong": sum(answers[name] != text for name, text in truth.items()),
    }


async def _alone(engine: SupervisedEngine, name: str) -> tuple[int, ...]:
    number, turn = map(int, name.split("-"))
    return await _ask(engine, f"alone-{name}", 1000 * number + turn)


def _settled_s(result: dict[str, Any], change: int) -> float | None:
    """Seconds from a change of level until the pool has the size that it keeps until the next change."""
    start = result["changes"][change]["at_s"]
    end = result["changes"][change + 1]["at_s"]
    during = [s for s in result["samples"] if start <= s["at_s"] < end]
    last = during[-1]["pool_blocks"]
    settled = next((s["at_s"] for s in during if s["pool_blocks"] == last), None)
    return None if settled is None else settled - start


def run(out: Path, rounds: int = 1) -> dict[str, Any]:
    """The benchmark model, the engine in its process, no HTTP. Footprint: resident memory of that process."""
    rows = [asyncio.run(_play(bench_model(out))) for _ in range(rounds)]
    for row in rows:
        row["warn_settled_s"], row["critical_settled_s"] = _settled_s(row, 1), _settled_s(row, 2)
    return {
        "script": [(level.name.lower(), seconds) for level, seconds in SCRIPT],
        "worst_settled_s": max(row[key] or 0.0 for row in rows for key in ("warn_settled_s", "critical_settled_s")),
        "texts_wrong": sum(row["texts_wrong"] for row in rows),
        "rounds": rows,
    }
