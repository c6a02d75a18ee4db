"""Chunks sized by predicted time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_server.services.batching.prefill_budget import PrefillBudget
from mlx_server.services.batching.step_time import StepTimePredictor, prefill_units, tokens_within

PLENTY = 1e9


@given(st.integers(1, 100_000), st.integers(0, 200_000))
@settings(deadline=None, derandomize=True)
def test_tokens_within_inverts_prefill_units(n: int, context: int) -> None:
    cost = prefill_units(n, context)
    assert tokens_within(cost * (1 + 1e-9), context) == n
    assert tokens_within(cost * (1 - 1e-9), context) in (n - 1, n)
    assert tokens_within(cost - 0.5, context) == n - 1


def test_no_time_is_no_tokens() -> None:
    assert tokens_within(0.0, 0) == 0
    assert tokens_within(-5.0, 1000) == 0


def test_the_rate_is_learned_beside_the_decodes() -> None:
    times = StepTimePredictor()
    for _ in range(60):
        times.observe(0.010, units=0)
        times.observe(0.110, units=100)
    assert times.units_within(0.060, decoding=True) == pytest.approx(50, rel=0.01)
    assert times.units_within(0.060, decoding=False) == pytest.approx(60, rel=0.01)
    assert times.units_within(0.005, decoding=True) == 0


def test_a_step_that_took_no_time_teaches_nothing() -> None:
    """A coarse clock, or a fake runner, must not make the rate infinite."""
    times = StepTimePredictor()
    times.observe(0.0, units=100)
    assert times.units_within(0.1, decoding=True) > 0


def test_progress_however_small_the_time_budget() -> None:
    budget = PrefillBudget(tokens=1000, units=0.0)
    first = budget.chunk(0, 500, others_wait=True)
    budget.take(first, 0)
    second = budget.chunk(0, 500, others_wait=False)
    budget.take(second, 0)
    assert (first, second) == (32, 32)
    assert budget.chunk(0, 500, others_wait=False) == 0


@given(
    st.integers(0, 5000),
    st.integers(1, 5000),
    st.integers(32, 3000),
    st.floats(0, 5000),
    st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_first_chunk_progresses_within_its_budget_and_ends_on_a_boundary(
    start: int, length: int, tokens: int, units: float, others_wait: bool
) -> None:
    budget = PrefillBudget(tokens, units)
    chunk = budget.chunk(start, start + length, others_wait=others_wait)
    assert 0 < chunk <= min(tokens, length)
    assert chunk == length or (start + chunk) % 32 == 0


def test_a_long_prompt_leaves_half_to_those_who_wait() -> None:
    budget = PrefillBudget(tokens=512, units=PLENTY)
    assert budget.chunk(0, 4000, others_wait=False) == 512
    long = budget.chunk(0, 4000, others_wait=True)
    assert long == 256
    budget.take(long, 0)
    assert budget.chunk(0, 50, others_wait=False) == 50


def test_a_prompt_that_can_finish_does() -> None:
    assert PrefillBudget(tokens=512, units=PLENTY).chunk(64, 464, others_wait=True) == 400
