"""Greedy choice, penalties, bans and log-probabilities against a plain numpy reference."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_server.core.step import Join
from mlx_server.runner.sampler import Sampler, SampleSpec
from tests.unit.runner.sampling_reference import adjusted, join, log_softmax, params, sample

VOCAB = 50
EOS = 7


def random_logits(seed: int, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, VOCAB)) * 2


PENALTIES: list[dict[str, object]] = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7},
    {"frequency_penalty": 0.6},
    {"frequency_penalty": -0.4},
    {"presence_penalty": 1.1},
    {"presence_penalty": -1.0},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.5},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": {1: 3.0, 2: -5.0}},
    {"logit_bias": {4: 2.5}},
    {},
]
PROMPT = (1, 1, 2, 3, 30)


class Answers:
    """Runs greedy rows side by side with the reference. Rows may come and go."""

    def __init__(self) -> None:
        self.sampler = Sampler(VOCAB, (EOS,))
        self.fields: dict[str, dict[str, object]] = {}
        self.generated: dict[str, list[int]] = {}

    def join(self, request_id: str, fields: dict[str, object]) -> None:
        self.fields[request_id] = fields
        known = self.generated.setdefault(request_id, [])
        join(self.sampler, request_id, (*PROMPT, *known), len(PROMPT), **fields)

    def step(self, ids: list[str], logits: np.ndarray) -> None:
        rows = [(i, len(PROMPT) + len(self.generated[i]), len(self.generated[i])) for i in ids]
        tokens = sample(self.sampler, logits, rows)
        for i, x, token in zip(ids, logits, tokens, strict=True):
            expected = adjusted(x, params(**self.fields[i]), PROMPT, self.generated[i])
            assert token.token_id == int(expected.argmax()), (i, self.generated[i])
            self.generated[i].append(token.token_id)


def test_greedy_is_the_argmax() -> None:
    x = random_logits(0, 6)
    answers = Answers()
    for i in range(6):
        answers.join(str(i), {})
    answers.step([str(i) for i in range(6)], x)


@pytest.mark.parametrize("fields", PENALTIES, ids=str)
def test_penalties_equal_the_reference_over_a_whole_answer(fields: dict[str, object]) -> None:
    answers = Answers()
    answers.join("r", fields)
    x = random_logits(1)
    for step in range(40):  # nearly the same logits every time, so the penalties decide
        answers.step(["r"], x + 0.01 * random_logits(100 + step))


def test_penalties_survive_changes_of_the_batch() -> None:
    """Rows join, leave, pause, change places; rows without penalties sit between."""
    answers = Answers()
    rng = np.random.default_rng(3)
    base = random_logits(2, len(PENALTIES))
    for i, fields in enumerate(PENALTIES):
        answers.join(str(i), fields)
    for _ in range(60):
        some = sorted(rng.choice(len(PENALTIES), size=rng.integers(1, len(PENALTIES) + 1), replace=False).tolist())
        rng.shuffle(some)
        answers.step([str(i) for i in some], base[some])


def test_penalties_go_on_after_a_preemption() -> None:
    answers = Answers()
    base = random_logits(4, 3)
    for i in range(3):
        answers.join(str(i), PENALTIES[6])
    for _ in range(8):
        answers.step(["0", "1", "2"], base)
    answers.sampler.leave("1")
    for _ in range(3):
        answers.step(["0", "2"], base[[0, 2]])
    answers.join("1", PENALTIES[6])
    for _ in range(8):
        answers.step(["0", "1", "2"], base)


def test_penalties_go_on_when_a_row_comes_back_into_the_same_batch() -> None:
    """Preempted and readmitted between two steps: the batch has the same ids in the same order."""
    answers = Answers()
    base = random_logits(5)
    answers.join("r", PENALTIES[2])
    for _ in range(5):
        answers.step(["r"], base)
    answers.sampler.leave("r")
    answers.join("r", PENALTIES[2])
    for _ in range(5):
        answers.step(["r"], base)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"temperature": 1.9, "seed": 3}, {"temperature": 0.0}),
        ({"logit_bias": {9: 50.0}}, {}),
        ({"frequency_penalty": 2.0}, {}),
        ({}, {"logit_bias": {9: 50.0}}),
        ({}, {"presence_penalty": 2.0}),
        ({"frequency_penalty": 2.0}, {"frequency_penalty": 2.0}),
        ({}, {"top_logprobs": 2}),
    ],
    ids=str,
)
def test_a_request_id_used_again_starts_afresh(before: dict[str, object], after: dict[str, object]) -> None:
    """An id is unique among the living only."""
    x = random_logits(6)
    used = Sampler(VOCAB, ())
    join(used, "r", **before)
    for position in range(3):
        sample(used, x, [("r", position, position)])
    used.leave("r")
    fresh = Sampler(VOCAB, ())
    for sampler in (used, fresh):
        join(sampler, "r", **after)
    for position in range(3):
        rows = [("r", position, position)]
        assert sample(used, x, rows) == sample(fresh, x, rows)


def test_end_tokens_are_impossible_before_min_tokens() -> None:
    x = np.zeros((1, VOCAB))
    x[0, [EOS, 12, 30]] = (9, 8, 7)
    sampler = Sampler(VOCAB, (EOS,))
    join(sampler, "r", min_tokens=3, stop_token_ids=(12,))
    tokens = [sample(sampler, x, [("r", 5 + n, n)])[0].token_id for n in range(5)]
    assert tokens == [30, 30, 30, EOS, EOS]


def test_a_bias_does_not_lift_the_ban() -> None:
    x = np.zeros((1, VOCAB))
    sampler = Sampler(VOCAB, (EOS,))
    for temperature in (0.0, 1.0):
        join(sampler, "r", min_tokens=1, logit_bias={EOS: 100.0}, temperature=temperature)
        assert sample(sampler, x, [("r", 5, 0)])[0].token_id != EOS
        assert sample(sampler, x, [("r", 6, 1)])[0].token_id == EOS
        sampler.leave("r")


def test_min_tokens_with_ignore_eos_bans_stop_tokens_only() -> None:
    x = np.zeros((1, VOCAB))
    x[0, [EOS, 12]] = (8, 9)
    sampler = Sampler(VOCAB, (EOS,))
    join(sampler, "r", min_tokens=2, stop_token_ids=(12,), ignore_eos=True)
    assert [sample(sampler, x, [("r", n, n)])[0].token_id for n in range(3)] == [EOS, EOS, 12]


def test_the_ban_is_for_its_own_row() -> None:
    x = np.zeros((2, VOCAB))
    x[:, EOS] = 5
    sampler = Sampler(VOCAB, (EOS,))
    join(sampler, "a", min_tokens=5)
    join(sampler, "b")
    a, b = sample(sampler, x, [("a", 0, 0), ("b", 0, 0)])
    assert (a.token_id == EOS, b.token_id == EOS) == (False, True)


def test_end_tokens_outside_the_vocabulary_never_index_the_logits() -> None:
    """Tokenizers of real models know more ids than the model has logits; the device checks no index."""
    sampler = Sampler(VOCAB, (EOS, VOCAB, 10**9, 10**30, -1))
    join(sampler, "r", min_tokens=1)
    assert sampler._rows["r"].banned == (EOS,)
    x = np.zeros((1, VOCAB))
    x[0, [EOS, VOCAB - 1]] = (9, 8)
    assert sample(sampler, x, [("r", 0, 0)])[0].token_id == VOCAB - 1


@pytest.mark.parametrize(
    ("fields", "history"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, ()),
        ({"logit_bias": {-1: 1.0}}, ()),
        ({"stop_token_ids": (VOCAB,)}, ()),
        ({"repetition_penalty": 1.1}, (VOCAB,)),
        ({"frequency_penalty": 1.1}, (-1,)),
    ],
    ids=str,
)
def test_ids_outside_the_vocabulary_raise_on_the_host(fields: dict[str, object], history: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        join(Sampler(VOCAB, ()), "r", history, **fields)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_the_raw_distribution(temperature: float) -> None:
    x = random_logits(8, 4)
    sampler = Sampler(VOCAB, (EOS,))
    wanted = [None, 0, 5, VOCAB + 30]
    for i, n in enumerate(wanted):
        join(
            sampler, str(i), PROMPT, len(PROMPT), top_logprobs=n, temperature=temperature, seed=i, top_p=0.9,
            repetition_penalty=1.5, presence_penalty=1.0, logit_bias={3: 2.0}, min_tokens=9,
        )  # fmt: skip
    tokens = sample(sampler, x, [(str(i), 9, 0) for i in range(4)])
    assert tokens[0].logprob is None
    for i in (1, 2, 3):
        expected = log_softmax(x[i])
        got = tokens[i].logprob
        assert got is not None
        assert got.logprob == pytest.approx(expected[tokens[i].token_id], abs=1e-4)
        best = np.argsort(-expected)[: wanted[i]]
        assert [token_id for token_id, _ in got.top] == best.tolist()
        assert [value for _, value in got.top] == pytest.approx(expected[best].tolist(), abs=1e-4)
    assert len(tokens[3].logprob.top) == VOCAB  # type: ignore[union-attr]


def test_equal_logits_are_ranked_by_token_id() -> None:
    x = np.zeros((1, VOCAB))
    sampler = Sampler(VOCAB, ())
    join(sampler, "r", top_logprobs=VOCAB)
    top = sample(sampler, x, [("r", 0, 0)])[0].logprob.top  # type: ignore[union-attr]
    assert [token_id for token_id, _ in top] == list(range(VOCAB))


def test_half_precision_logits_are_scored_in_float32() -> None:
    x = mx.array(random_logits(9).astype(np.float16))
    sampler = Sampler(VOCAB, ())
    join(sampler, "r", top_logprobs=0)
    token = sampler.sample(x, [SampleSpec("r", 0, 0)]).read()[0]
    assert token.logprob is not None
    assert token.logprob.logprob == pytest.approx(log_softmax(np.array(x)[0]).max(), abs=1e-4)


def test_nothing_of_a_row_is_held_after_it_left() -> None:
    """At idle the sampler keeps no `[rows, vocab]` arrays alive."""
    sampler = Sampler(VOCAB, ())
    sampler.join(Join("r", params(frequency_penalty=1.0), (), None, PROMPT, len(PROMPT)))
    sample(sampler, random_logits(10), [("r", 5, 0)])
    assert sampler.state() != []
    sampler.leave("r")
    assert sampler.state() == []
    assert sampler._rows == {}
    assert sampler._batch is None
