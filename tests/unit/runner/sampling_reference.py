"""What the sampler must do, in plain numpy float64 on one row at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlx_server.core.messages import SamplingParams
from mlx_server.core.step import Join, SampledToken
from mlx_server.runner.sampler import Sampler, SampleSpec

Row = tuple[str, int, int]
"""Request id, position of the token to be sampled, tokens generated before it."""


def params(**fields: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1000, "temperature": 0.0, **fields})  # type: ignore[arg-type]


def join(sampler: Sampler, request_id: str, history: Sequence[int] = (), prompt: int = 0, **fields: object) -> None:
    sampler.join(Join(request_id, params(**fields), (), None, tuple(history), prompt))


def sample(sampler: Sampler, logits: np.ndarray, rows: Sequence[Row]) -> list[SampledToken]:
    """One step: logits `[rows, vocab]`."""
    output = sampler.sample(mx.array(logits.astype(np.float32)), [SampleSpec(*row) for row in rows])
    mx.eval(output.arrays(), sampler.state())
    return output.read()


def adjusted(
    logits: np.ndarray, p: SamplingParams, prompt: Sequence[int] = (), generated: Sequence[int] = ()
) -> np.ndarray:
    """Bias, then repetition over prompt and answer, then frequency and presence over the answer."""
    x = logits.astype(np.float64).copy()
    for token_id, bias in p.logit_bias.items():
        x[token_id] += bias
    for token_id in {*prompt, *generated}:
        x[token_id] = x[token_id] / p.repetition_penalty if x[token_id] > 0 else x[token_id] * p.repetition_penalty
    for token_id, count in Counter(generated).items():
        x[token_id] -= p.frequency_penalty * count + p.presence_penalty
    return x


def distribution(x: np.ndarray, p: SamplingParams) -> np.ndarray:
    """Temperature, top-k, top-p over what top-k left, min-p; renormalised. Needs distinct logits."""
    x = x / p.temperature
    probability = np.exp(x - x.max())
    order = np.argsort(-probability)
    if p.top_k:
        order = order[: p.top_k]
    of_these = probability[order] / probability[order].sum()
    before = np.cumsum(of_these) - of_these
    order = order[: max(1, int((before < p.top_p).sum()))]
    order = order[probability[order] >= p.min_p * probability.max()]
    kept = np.zeros_like(probability)
    kept[order] = probability[order]
    return kept / kept.sum()


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())
