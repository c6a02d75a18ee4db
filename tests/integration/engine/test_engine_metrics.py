"""Metrics of an engine that is killed: nothing falls, and the restart is seen."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from mlx_server.core.settings import Settings
from mlx_server.engine.supervisor import SupervisedEngine
from mlx_server.telemetry.engine_metrics import EngineFigures
from mlx_server.telemetry.metrics import Metrics
from tests.fakes.lockstep import prompt_of, request
from tests.fakes.token_pool_engine import COMMAND
from tests.integration.engine.engines import until

PATIENCE_S = 30.0


async def scrape(metrics: Metrics, engine: SupervisedEngine) -> dict[str, float]:
    figures = EngineFigures(engine.info, await engine.stats(), is_up=not engine.is_restarting)
    text = metrics.render(figures, "")[0].decode()
    return {
        "|".join([s.name, *s.labels.values()]): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


async def ask(engine: SupervisedEngine, name: str) -> None:
    async for _ in engine.generate(request(name, prompt_of(80), max_tokens=40, ignore_eos=True)):
        pass


async def test_counters_of_a_killed_engine_go_on(tmp_path: Path) -> None:
    engine = SupervisedEngine(Settings(), tmp_path, "fake", command=COMMAND)
    metrics = Metrics("m")
    async with asyncio.timeout(PATIENCE_S):
        try:
            await engine.start()
            await ask(engine, "one")
            before = await scrape(metrics, engine)
            os.kill((await engine.stats()).pid, signal.SIGKILL)
            await until(lambda: engine.is_restarting)
            waiting = asyncio.ensure_future(ask(engine, "two"))
            await asyncio.to_thread(lambda: None)  # it is submitted; a process takes far longer to load
            down = await scrape(metrics, engine)
            await waiting
            after = await scrape(metrics, engine)
        finally:
            await engine.close()
    assert [one["mlx_serve_engine_up|m"] for one in (before, down, after)] == [1, 0, 1]
    assert down["mlx_serve_requests_waiting|m|normal"] == down["vllm:num_requests_waiting|m"] == 1
    assert down["mlx_serve_streams|m|live"] == 1
    assert [one["vllm:generation_tokens_total|m"] for one in (before, down, after)] == [40, 40, 80]
    assert after["mlx_serve_engine_restarts_total|m"] == 1
    fallen = [name for name, value in after.items() if name.split("|")[0].endswith("_total") and value < before[name]]
    assert fallen == []
