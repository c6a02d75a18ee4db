"""Draws follow the distribution of a plain numpy reference, and depend on (seed, position) alone."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlx_server.runner import sampler as sampler_module
from mlx_server.runner.sampler import Sampler
from tests.unit.runner.sampling_reference import adjusted, distribution, join, params, sample

VOCAB = 40
DRAWS = 4000


def chi_square_bound(freedom: int) -> float:
    """Above the 1e-6 quantile. The seeds are fixed, so a passing test stays one."""
    return freedom + 5.2 * (2 * freedom) ** 0.5 + 16 if freedom else 1e-6


def logits(seed: int = 0, rows: int = 1, vocab: int = VOCAB) -> np.ndarray:
    """Distinct values: which of two equal tokens a filter keeps is nobody's promise."""
    rng = np.random.default_rng(seed)
    steps = np.stack([rng.permutation(vocab) for _ in range(rows)])
    return steps * (6.0 / vocab) + rng.uniform(0, 1 / vocab, (rows, vocab))


def draw(x: np.ndarray, n: int = DRAWS, first_seed: int = 0, **fields: object) -> np.ndarray:
    """One token for each of `n` seeds from the same logits `[vocab]`."""
    sampler = Sampler(len(x), ())
    for i in range(n):
        join(sampler, str(i), **{"temperature": 1.0, "seed": first_seed + i, **fields})
    tokens = sample(sampler, np.tile(x, (n, 1)), [(str(i), 7, 0) for i in range(n)])
    return np.array([t.token_id for t in tokens])


FILTERS: list[dict[str, object]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.9},
    {"top_k": 1},
    {"top_k": 5},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 10, "top_p": 0.8},
    {"top_k": 30, "top_p": 0.95, "min_p": 0.05, "temperature": 0.7},
    {"top_k": VOCAB},
    {"top_k": VOCAB + 1},
    {"top_k": 2**31 - 1},
    {"logit_bias": {3: 4.0, 4: -100.0}},
]


@pytest.mark.parametrize("fields", FILTERS, ids=str)
def test_draws_follow_the_reference_distribution(fields: dict[str, object]) -> None:
    x = logits()[0]
    p = params(**{"temperature": 1.0, **fields})
    expected = distribution(adjusted(x, p), p)
    counts = np.bincount(draw(x, **fields), minlength=VOCAB)
    assert counts[expected == 0].sum() == 0, "a token outside the filter was drawn"
    common = expected * DRAWS >= 5
    rare = DRAWS - counts[common].sum()
    assert rare <= expected[~common].sum() * DRAWS + 6 * (expected[~common].sum() * DRAWS + 1) ** 0.5
    statistic = ((counts - expected * DRAWS)[common] ** 2 / (expected * DRAWS)[common]).sum()
    assert statistic <= chi_square_bound(int(common.sum()) - 1)


def test_filters_of_each_row_are_its_own() -> None:
    """Rows with different filters in one batch draw what they draw alone."""
    x = logits(1, rows=len(FILTERS))
    rows = [(str(i), 11, 0) for i in range(len(FILTERS))]
    together = Sampler(VOCAB, ())
    alone = []
    for i, fields in enumerate(FILTERS):
        full = {"temperature": 1.0, "seed": 100 + i, **fields}
        join(together, str(i), **full)
        one = Sampler(VOCAB, ())
        join(one, str(i), **full)
        alone.append(sample(one, x[i : i + 1], rows[i : i + 1])[0].token_id)
    assert [t.token_id for t in sample(together, x, rows)] == alone


@pytest.mark.parametrize("neighbour", [{"temperature": 1.9}, {"temperature": 2.0, "top_k": 3}, {"min_p": 0.5}])
def test_a_greedy_row_beside_a_sampled_one_stays_greedy(neighbour: dict[str, object]) -> None:
    x = logits(2, rows=2)
    best = int(x[0].argmax())
    for seed in range(200):
        sampler = Sampler(VOCAB, ())
        join(sampler, "greedy", temperature=0.0, seed=seed)
        join(sampler, "hot", **{"temperature": 1.9, "seed": seed, **neighbour})
        assert sample(sampler, x, [("greedy", seed, 0), ("hot", seed, 0)])[0].token_id == best


def test_the_same_seed_and_position_draw_the_same_in_any_batch() -> None:
    x = logits(3, rows=8)

    def drawn(order: list[int], extra: int) -> dict[int, int]:
        sampler = Sampler(VOCAB, ())
        for i in order:
            join(sampler, str(i), temperature=1.0, seed=1000 + i)
        for i in range(extra):
            join(sampler, f"other{i}", temperature=1.5, seed=i, top_p=0.9)
        rows = [(str(i), 20 + i, 0) for i in order] + [(f"other{i}", 3, 0) for i in range(extra)]
        values = np.concatenate([x[order], logits(4, rows=extra)]) if extra else x[order]
        tokens = sample(sampler, values, rows)
        return {i: tokens[at].token_id for at, i in enumerate(order)}

    everyone = drawn(list(range(8)), 0)
    assert drawn(list(reversed(range(8))), 5) == everyone
    for i in range(8):
        assert drawn([i], 0) == {i: everyone[i]}


def test_positions_and_all_64_bits_of_a_seed_matter() -> None:
    x = np.zeros(1024)
    base = 0x1234_5678_9ABC_DEF0
    by_bit = {draw(x, 1, first_seed=base ^ (1 << bit))[0] for bit in range(64)}
    assert len(by_bit) > 55, "flipping one bit of the seed should nearly always change the draw"
    sampler = Sampler(1024, ())
    join(sampler, "r", temperature=1.0, seed=2**64 - 1)
    tokens = [sample(sampler, x[None], [("r", position, 0)])[0].token_id for position in range(300)]
    assert len(set(tokens)) > 220, "300 uniform draws of 1024"


def test_neighbouring_seeds_and_positions_are_not_correlated() -> None:
    """(seed, position + 1) must not equal (seed + 1, position), as a plain sum would make it."""
    x = np.zeros(4096)
    sampler = Sampler(4096, ())
    for seed in range(20):
        join(sampler, str(seed), temperature=1.0, seed=seed)
    grid = [
        [t.token_id for t in sample(sampler, np.tile(x, (20, 1)), [(str(s), position, 0) for s in range(20)])]
        for position in range(20)
    ]
    assert len({token for row in grid for token in row}) > 350


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=64),
    u=st.sampled_from([0.0, 2.0**-24, 0.5, 1 - 2.0**-20, 1 - 2.0**-23, 1 - 2.0**-24]),
    excluded=st.integers(0, 2**64 - 1),
)
@example(values=[0.0, 1.0], u=0.0, excluded=0b01)
@example(values=[1.0, 0.0], u=1 - 2.0**-24, excluded=0b10)
def test_no_random_number_selects_an_excluded_token(values: list[float], u: float, excluded: int) -> None:
    x = np.array(values, dtype=np.float32)
    keep = np.array([not excluded >> i & 1 for i in range(len(x))])
    keep[int(x.argmax())] = True
    x = np.where(keep, x, -np.inf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler_module.mx.random, "uniform", lambda key: (key[0] * 0).astype(mx.float32) + u)
        token = sampler_module._draw(mx.array(x[None]), mx.zeros((1, 2), dtype=mx.uint32)).item()
    assert keep[token]


def test_the_largest_random_number_on_a_vocabulary_of_a_real_model() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, 151_936)).astype(np.float32) * 3
    x[:, 100_000:] = -np.inf  # the tail of the cumulative sum is flat
    x[1, 1:] = -np.inf
    x[2, ::2] = -np.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler_module.mx.random, "uniform", lambda key: (key[0] * 0).astype(mx.float32) + 1.0)
        tokens = sampler_module._draw(mx.array(x), mx.zeros((4, 2), dtype=mx.uint32)).tolist()
    for row, token in enumerate(tokens):
        assert x[row, token] > -np.inf


def test_a_draw_that_rounding_sent_astray_becomes_the_most_likely_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU sums in parallel, so a flat stretch of the cumulative distribution is not exactly flat."""
    x = logits(7, rows=3)
    worst, best = x.argmin(axis=-1).tolist(), x.argmax(axis=-1).tolist()
    monkeypatch.setattr(sampler_module, "_draw", lambda logits, keys: mx.array(worst, dtype=mx.int32))
    sampler = Sampler(VOCAB, ())
    for i, fields in enumerate([{"top_k": 5}, {"min_p": 0.5}, {}]):
        join(sampler, str(i), temperature=1.0, **fields)
    tokens = [t.token_id for t in sample(sampler, x, [(str(i), 0, 0) for i in range(3)])]
    assert tokens == [best[0], best[1], worst[2]]


def test_a_tiny_temperature_is_greedy() -> None:
    x = logits(6)[0]
    assert set(draw(x, 50, temperature=2e-5)) == {x.argmax()}
    assert set(draw(x, 50, temperature=9e-6)) == {x.argmax()}
