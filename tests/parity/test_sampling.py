"""The same seed gives the same sampled text, whatever else the machine is doing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mlx_server.core.messages import Priority
from tests import tiny_models
from tests.step_driver import StepDriver

NEW_TOKENS = 32
EVERYTHING: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 60,
    "top_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.3,
    "presence_penalty": 0.2,
    "logit_bias": {5: 1.5, 6: -100.0},
    "min_tokens": 3,
}
SAMPLERS: dict[str, dict[str, Any]] = {"plain": {"temperature": 1.0}, "everything": EVERYTHING}


def prompts(n: int, longest: int, shortest: int, seed: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(1, 256) for _ in range(rng.randint(shortest, longest))) for _ in range(n)]


PROMPT = prompts(1, 110, 110, seed=1)[0]


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StepDriver:
    # A small spread: the distributions are flat, so that the random numbers decide.
    folder = tiny_models.save(
        tiny_models.family_config(request.param), tmp_path_factory.mktemp(request.param), spread=0.7
    )
    return StepDriver(folder)


@pytest.fixture(params=sorted(SAMPLERS))
def sampling(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**SAMPLERS[request.param], "seed": 2**63 + 12345}


def alone(driver: StepDriver, sampling: dict[str, Any], prompt: tuple[int, ...] = PROMPT) -> list[int]:
    driver.fresh()
    driver.add("alone", prompt, NEW_TOKENS, **sampling)
    return driver.run()["alone"].tokens


def add_others(driver: StepDriver, n: int, seed: int) -> None:
    for i, prompt in enumerate(prompts(n, 90, 3, seed)):
        kind = [{"temperature": 0.0}, {"temperature": 1.9, "seed": i}, {**EVERYTHING, "seed": i}][i % 3]
        driver.add(f"other{i}", prompt, 5 + 3 * i, **kind)


@pytest.mark.parametrize("at", [0, 7, 15])
def test_in_any_place_of_a_batch_of_16(driver: StepDriver, sampling: dict[str, Any], at: int) -> None:
    expected = alone(driver, sampling)
    driver.fresh()
    add_others(driver, at, seed=at)
    for _ in range(3):
        driver.step()
    driver.add("me", PROMPT, NEW_TOKENS, **sampling)
    for i, prompt in enumerate(prompts(15 - at, 60, 3, seed=at + 50)):
        driver.step()
        driver.add(f"later{i}", prompt, 10, temperature=1.5, seed=i)
    assert driver.run()["me"].tokens == expected


def test_chunked(driver: StepDriver, sampling: dict[str, Any]) -> None:
    expected = alone(driver, sampling)
    driver.fresh(max_num_seqs=8, max_num_batched_tokens=40)
    add_others(driver, 4, seed=3)
    driver.add("me", PROMPT, NEW_TOKENS, **sampling)
    assert driver.run()["me"].tokens == expected


def test_after_preemption(driver: StepDriver, sampling: dict[str, Any]) -> None:
    expected = alone(driver, sampling)
    driver.fresh(num_blocks=8)
    driver.add("me", PROMPT, NEW_TOKENS, Priority.LOW, **sampling)
    for _ in range(12):
        driver.step()
    got = len(driver.outcomes["me"].tokens)
    assert 3 < got < NEW_TOKENS
    for i, prompt in enumerate(prompts(2, 140, 140, seed=9)):
        driver.add(f"high{i}", prompt, 20, Priority.HIGH, temperature=1.0, seed=i)
    assert driver.run()["me"].tokens == expected
    assert driver.scheduler.counters.preemptions > 0


def test_on_a_prefix_hit_and_on_an_exact_repeat(driver: StepDriver, sampling: dict[str, Any]) -> None:
    longer = PROMPT[:75] + prompts(1, 40, 40, seed=4)[0]
    expected, expected_longer = alone(driver, sampling), alone(driver, sampling, longer)
    driver.fresh()
    driver.add("first", PROMPT, NEW_TOKENS, **sampling)
    assert driver.run()["first"].tokens == expected
    driver.add("repeat", PROMPT, NEW_TOKENS, **sampling)
    driver.add("shares 75", longer, NEW_TOKENS, **sampling)
    outcomes = driver.run()
    assert outcomes["repeat"].tokens == expected
    assert outcomes["shares 75"].tokens == expected_longer
    assert outcomes["repeat"].cached_tokens == len(PROMPT) - 1
    assert outcomes["shares 75"].cached_tokens == 75


def test_other_seeds_give_other_texts(driver: StepDriver) -> None:
    driver.fresh()
    for seed in range(16):
        driver.add(str(seed), PROMPT, NEW_TOKENS, temperature=1.0, seed=seed)
    texts = {tuple(outcome.tokens) for outcome in driver.run().values()}
    assert len(texts) == 16


def test_greedy_beside_heat_is_mlx_lms_greedy(driver: StepDriver) -> None:
    driver.fresh()
    driver.add("greedy", PROMPT, NEW_TOKENS)
    for i, prompt in enumerate(prompts(7, 90, 3, seed=6)):
        driver.add(f"hot{i}", prompt, NEW_TOKENS, temperature=1.9, seed=i, top_k=5 if i % 2 else 0)
    assert driver.run()["greedy"].tokens == driver.solo(PROMPT, NEW_TOKENS)


def test_an_id_used_again_takes_nothing_over(driver: StepDriver) -> None:
    """Two lives of one request id, with other parameters."""
    driver.fresh()
    driver.add("r", PROMPT, NEW_TOKENS, temperature=1.9, seed=1, logit_bias={9: 30.0}, frequency_penalty=1.0)
    driver.run()
    driver.add("r", PROMPT, NEW_TOKENS)
    assert driver.run()["r"].tokens == driver.solo(PROMPT, NEW_TOKENS)
