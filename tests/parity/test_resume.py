"""A request that was interrupted goes on as if it had not been: its tokens so far are handed back, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.core.messages import FinishReason
from tests import tiny_models
from tests.parity.test_sampling import EVERYTHING, PROMPT, add_others
from tests.step_driver import Outcome, StepDriver

NEW_TOKENS = 40
CUTS = [0, 1, 31, 32, 33, NEW_TOKENS - 1]
SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 2**63 + 5},
    "everything": {**EVERYTHING, "min_tokens": 36, "seed": 7, "top_logprobs": 3},
}
END = 9  # made likely by a bias, and impossible before `min_tokens`

samplers = pytest.mark.parametrize("sampler", sorted(SAMPLERS))
cuts = pytest.mark.parametrize("cut", CUTS)


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StepDriver:
    # A small spread: the distributions are flat, so that the random numbers decide.
    folder = tiny_models.save(
        tiny_models.family_config(request.param), tmp_path_factory.mktemp(request.param), spread=0.7
    )
    return StepDriver(folder)


@pytest.fixture(scope="module")
def whole(driver: StepDriver) -> dict[str, Outcome]:
    """Each sampler's text without an interruption."""
    driver.fresh()
    outcomes = {}
    for name, sampling in SAMPLERS.items():
        driver.add(name, PROMPT, NEW_TOKENS, **sampling)
        outcomes[name] = driver.run()[name]
        assert len(outcomes[name].tokens) == NEW_TOKENS
    return outcomes


def check(outcome: Outcome, whole: Outcome, cut: int) -> None:
    """The rest of the text, with the logprobs of these tokens."""
    assert outcome.tokens == whole.tokens[cut:]
    assert outcome.finish_reason is whole.finish_reason
    assert outcome.error is None
    assert 0 <= outcome.cached_tokens <= len(PROMPT)
    for got, expected in zip(outcome.logprobs, whole.logprobs[cut:], strict=True):
        assert got.logprob == pytest.approx(expected.logprob, abs=1e-3)
        assert [p for _, p in got.top] == pytest.approx([p for _, p in expected.top], abs=1e-3)


@samplers
@cuts
def test_in_an_engine_that_knows_nothing(driver: StepDriver, whole: dict[str, Outcome], sampler: str, cut: int) -> None:
    driver.fresh()
    driver.add("me", PROMPT, NEW_TOKENS, generated=whole[sampler].tokens[:cut], **SAMPLERS[sampler])
    outcome = driver.run()["me"]
    check(outcome, whole[sampler], cut)
    assert outcome.cached_tokens == 0
    stats = driver.scheduler.stats()
    assert (stats.prompt_tokens, stats.generated_tokens) == (len(PROMPT), NEW_TOKENS - cut)


@samplers
def test_beside_others_in_chunks_and_without_a_cache(
    driver: StepDriver, whole: dict[str, Outcome], sampler: str
) -> None:
    """All cuts at once, so they also wait for one another."""
    driver.fresh(max_num_seqs=8, max_num_batched_tokens=72, prefix_cache=False)
    add_others(driver, 4, seed=3)
    for cut in CUTS:
        driver.step()
        driver.add(f"me{cut}", PROMPT, NEW_TOKENS, generated=whole[sampler].tokens[:cut], **SAMPLERS[sampler])
    outcomes = driver.run()
    for cut in CUTS:
        check(outcomes[f"me{cut}"], whole[sampler], cut)
        assert outcomes[f"me{cut}"].cached_tokens == 0


@samplers
def test_from_the_blocks_that_it_left_in_the_cache(driver: StepDriver, whole: dict[str, Outcome], sampler: str) -> None:
    """It was paused, not lost: all but one of the tokens that were computed are found, so usage says: all cached."""
    driver.fresh()
    driver.add("first", PROMPT, NEW_TOKENS, **SAMPLERS[sampler])
    while len(driver.outcomes["first"].tokens) < 33:
        driver.step()
    driver.scheduler.cancel("first")
    driver.run()
    before = sum(len(p) for p in (PROMPT, driver.outcomes["first"].tokens))
    got = driver.outcomes["first"].tokens
    driver.add("again", PROMPT, NEW_TOKENS, generated=got, **SAMPLERS[sampler])
    driver.step()
    request = driver.scheduler._sets["again"]
    assert request.num_computed == before
    outcome = driver.run()["again"]
    check(outcome, whole[sampler], len(got))
    assert outcome.cached_tokens == len(PROMPT)


@pytest.mark.parametrize("cut", [1, 33])
def test_twice_interrupted(driver: StepDriver, whole: dict[str, Outcome], cut: int) -> None:
    got: list[int] = []
    for stop_at in (cut // 2, cut, NEW_TOKENS):
        driver.fresh()
        driver.add("me", PROMPT, NEW_TOKENS, generated=got, **SAMPLERS["everything"])
        while len(got) + len(driver.outcomes["me"].tokens) < stop_at:
            driver.step()
        got = got + driver.outcomes["me"].tokens
    assert got == whole["everything"].tokens


def test_min_tokens_counts_what_was_generated_before(driver: StepDriver) -> None:
    """The end is by far the likeliest token at every position, and allowed from the 35th on."""
    sampling: dict[str, Any] = {
        "temperature": 0.0,
        "min_tokens": 34,
        "stop_token_ids": (END,),
        "logit_bias": {END: 50.0},
    }
    driver.fresh()
    driver.add("whole", PROMPT, NEW_TOKENS, **sampling)
    whole = driver.run()["whole"]
    assert (len(whole.tokens), whole.finish_reason) == (34, FinishReason.STOP)
    driver.fresh()
    for cut in (0, 1, 31, 32, 33, 34):
        driver.add(f"me{cut}", PROMPT, NEW_TOKENS, generated=whole.tokens[:cut], **sampling)
    outcomes = driver.run()
    for cut in (0, 1, 31, 32, 33, 34):
        check(outcomes[f"me{cut}"], whole, cut)


def test_at_the_end_of_the_context(driver: StepDriver) -> None:
    """`max_model_len` bounds prompt and text together, however often it was interrupted."""
    length = len(PROMPT) + 20
    driver.fresh(max_model_len=length)
    driver.add("whole", PROMPT, NEW_TOKENS)
    whole = driver.run()["whole"]
    assert (len(whole.tokens), whole.finish_reason) == (20, FinishReason.LENGTH)
    for cut in (1, 19):
        driver.fresh(max_model_len=length)
        driver.add("me", PROMPT, NEW_TOKENS, generated=whole.tokens[:cut])
        check(driver.run()["me"], whole, cut)
