"""A pool that grows, is compacted and shrinks under a model changes no token."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.core.messages import FinishReason, MemoryLevel
from tests import tiny_models
from tests.parity.test_sampling import EVERYTHING, prompts
from tests.step_driver import Outcome, StepDriver

SAMPLERS: list[dict[str, Any]] = [{}, {"temperature": 1.0}, EVERYTHING]
ROWS = 10


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StepDriver:
    folder = tiny_models.save(tiny_models.family_config(request.param), tmp_path_factory.mktemp(request.param))
    return StepDriver(folder)


def ask(driver: StepDriver) -> None:
    for i in range(ROWS):
        length = 40 + 17 * i
        driver.add(f"r{i}", prompts(1, length, length, seed=i)[0], 40 + 5 * i, **{"seed": i} | SAMPLERS[i % 3])


@pytest.fixture(scope="module")
def plain(driver: StepDriver) -> dict[str, Outcome]:
    driver.fresh()
    ask(driver)
    return driver.run()


def check(driver: StepDriver, plain: dict[str, Outcome]) -> None:
    outcomes = driver.run()
    assert {name: o.tokens for name, o in outcomes.items()} == {name: o.tokens for name, o in plain.items()}
    assert {o.finish_reason for o in outcomes.values()} == {FinishReason.LENGTH}


@pytest.mark.parametrize("kept_bytes", [0, None])
def test_it_grows_under_the_rows(driver: StepDriver, plain: dict[str, Outcome], kept_bytes: int | None) -> None:
    driver.fresh(initial_blocks=4, kept_bytes=kept_bytes)
    ask(driver)
    check(driver, plain)
    assert 4 < driver.scheduler.stats().pool_blocks < 256
    assert driver.runner._pool.num_blocks == driver.scheduler.stats().pool_blocks


@pytest.mark.parametrize("every", [3, 8])
def test_pressure_comes_and_goes(driver: StepDriver, plain: dict[str, Outcome], every: int) -> None:
    driver.fresh(initial_blocks=4)
    ask(driver)
    for _ in range(12):
        driver.step()
    sizes = set()
    levels = [MemoryLevel.WARN, MemoryLevel.CRITICAL, MemoryLevel.NORMAL] * 4
    for level in levels:
        for _ in range(every):
            driver.step()
        sizes.add(driver.scheduler.stats().pool_blocks)
        driver.scheduler.set_memory_level(level)
    assert len(sizes) > 2
    check(driver, plain)
    stats = driver.scheduler.stats()
    assert stats.preemptions > 0
    assert stats.blocks_used == 0
