"""Greedy text of every family equals mlx-lm's own single-request generation, token for token, on every path."""

from __future__ import annotations

import random

import pytest

from mlx_server.core.messages import FinishReason, Priority
from tests import tiny_models
from tests.step_driver import StepDriver

NEW_TOKENS = 40
WINDOW = 48


@pytest.fixture(scope="module", params=sorted(tiny_models.FAMILIES))
def driver(request, tmp_path_factory) -> StepDriver:
    folder = tmp_path_factory.mktemp(request.param)
    return StepDriver(tiny_models.save(tiny_models.family_config(request.param), folder))


def prompts(n: int, longest: int = 150, shortest: int = 3, seed: int = 5) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(1, 256) for _ in range(rng.randint(shortest, longest))) for _ in range(n)]


LONG = prompts(1, longest=130, shortest=130)[0]
assert len(LONG) > 2 * WINDOW


def check_all(driver: StepDriver, wanted: dict[str, tuple[int, ...]]) -> None:
    outcomes = driver.run()
    for request_id, prompt in wanted.items():
        assert outcomes[request_id].tokens == driver.solo(prompt, NEW_TOKENS), request_id
        assert outcomes[request_id].finish_reason is FinishReason.LENGTH


def test_alone(driver):
    driver.fresh()
    driver.add("alone", LONG, NEW_TOKENS)
    check_all(driver, {"alone": LONG})


@pytest.mark.parametrize("kept_bytes", [0, 1 << 30], ids=["gathered", "kept"])
def test_mixed_batch_of_16(driver, kept_bytes):
    driver.fresh(kept_bytes=kept_bytes)
    wanted = {f"r{i}": prompt for i, prompt in enumerate(prompts(16))}
    for i, (request_id, prompt) in enumerate(wanted.items()):
        driver.add(request_id, prompt, NEW_TOKENS)
        if i % 3 == 0:
            driver.step()  # so that some join while others decode
    check_all(driver, wanted)


def test_chunked_prefill_beside_decodes(driver):
    driver.fresh(max_num_seqs=8, max_num_batched_tokens=40)
    wanted = {f"r{i}": prompt for i, prompt in enumerate([LONG, *prompts(5, seed=6)])}
    for request_id, prompt in wanted.items():
        driver.add(request_id, prompt, NEW_TOKENS)
    check_all(driver, wanted)
    assert driver.scheduler.counters.steps > len(LONG) // 40


def test_the_path_of_a_gpu(driver, monkeypatch):
    """Fused attention for chunks and one softmax for decodes: what runs where MLX has kernels."""
    for module in ("attend", "attention"):
        monkeypatch.setattr(f"mlx_server.runner.{module}.without_kernels", lambda: False)
    driver.fresh(max_num_seqs=8, max_num_batched_tokens=72)
    wanted = {f"r{i}": prompt for i, prompt in enumerate([LONG, *prompts(4, seed=11)])}
    for request_id, prompt in wanted.items():
        driver.add(request_id, prompt, NEW_TOKENS)
    check_all(driver, wanted)


def test_prefix_hit_and_exact_repeat(driver):
    driver.fresh()
    driver.add("first", LONG, NEW_TOKENS)
    driver.run()
    longer = LONG[:70] + prompts(1, longest=60, shortest=60, seed=7)[0]
    driver.add("shares 70", longer, NEW_TOKENS)
    driver.add("repeat", LONG, NEW_TOKENS)
    turn = LONG + tuple(driver.outcomes["first"].tokens) + (7, 8, 9)
    driver.add("next turn", turn, NEW_TOKENS)
    check_all(driver, {"first": LONG, "shares 70": longer, "repeat": LONG, "next turn": turn})
    cached = {request_id: o.cached_tokens for request_id, o in driver.outcomes.items()}
    # The last generated token has no K/V: nothing was computed after it.
    assert cached == {
        "first": 0,
        "shares 70": 70,
        "repeat": len(LONG) - 1,
        "next turn": len(LONG) + NEW_TOKENS - 1,
    }


def test_preempted_and_resumed(driver):
    driver.fresh(num_blocks=24)
    low = {f"low{i}": prompt for i, prompt in enumerate(prompts(3, longest=150, shortest=120, seed=8))}
    high = {f"high{i}": prompt for i, prompt in enumerate(prompts(3, longest=150, shortest=120, seed=9))}
    for request_id, prompt in low.items():
        driver.add(request_id, prompt, NEW_TOKENS, Priority.LOW)
    for _ in range(15):
        driver.step()
    for request_id, prompt in high.items():
        driver.add(request_id, prompt, NEW_TOKENS, Priority.HIGH)
    check_all(driver, low | high)
    assert driver.scheduler.counters.preemptions > 0
