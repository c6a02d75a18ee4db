"""Softmax attention over K/V that lies in several parts: committed blocks in pieces, a tail, a chunk's own tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

Part = tuple[mx.array, mx.array, mx.array | None]
"""k `[..., L, dim]`, v `[..., L, v_dim]`, and what is added to the scores (broadcast to `[..., n, L]`), or None."""

HIDDEN = -1e30
"""Added to a score to hide it. Finite, so that a part wholly out of sight gives no NaN."""

_LOG2_E = math.log2(math.e)


def attend(q: mx.array, parts: Sequence[Part], sinks: mx.array | None) -> mx.array:
    """q `[..., n, dim]`, already scaled -> `[..., n, v_dim]`.

    sinks: a logit per query that takes weight and gives none, or None.
    """
    if q.dtype == mx.float32 and without_kernels():
        return _by_powers(q, parts, sinks)
    return _by_softmax(q, parts, sinks)


def without_kernels() -> bool:
    """Whether attention is made of plain operations anyway: MLX has no fused kernel for it on the CPU."""
    return mx.default_device() == mx.cpu


def _scores(q: mx.array, part: Part) -> mx.array:
    k, _, bias = part
    scores = q @ k.swapaxes(-1, -2)
    return scores if bias is None else scores + bias.astype(scores.dtype)


def _by_softmax(q: mx.array, parts: Sequence[Part], sinks: mx.array | None) -> mx.array:
    """One softmax over the concatenated scores, then a product for each part."""
    scores = [_scores(q, part) for part in parts]
    if sinks is not None:
        scores.insert(0, mx.broadcast_to(sinks.astype(q.dtype), (*scores[0].shape[:-1], 1)))
    weights = mx.softmax(mx.concatenate(scores, axis=-1) if len(scores) > 1 else scores[0], axis=-1, precise=True)
    start = 0 if sinks is None else 1
    out = None
    for _, v, _ in parts:
        part = weights[..., start : start + v.shape[-2]] @ v
        out = part if out is None else out + part
        start += v.shape[-2]
    return out if out is not None else weights


def _by_powers(q: mx.array, parts: Sequence[Part], sinks: mx.array | None) -> mx.array:
    """The same on the CPU backend, whose `exp` (and so `softmax`) is three times slower than its `power`.

    Scores are taken to base 2, weights are normalised after the product with V, and nothing is concatenated.
    """
    q = q * _LOG2_E
    scores = [_scores(q, part) for part in parts]
    top = mx.max(scores[0], axis=-1, keepdims=True)
    for part_scores in scores[1:]:
        top = mx.maximum(top, mx.max(part_scores, axis=-1, keepdims=True))
    if sinks is not None:
        sinks = sinks.astype(q.dtype) * _LOG2_E
        top = mx.maximum(top, sinks)
    total = mx.power(2.0, sinks - top) if sinks is not None else mx.zeros_like(top)
    out = mx.zeros((1,), dtype=q.dtype)
    for part_scores, (_, v, _) in zip(scores, parts, strict=True):
        weights = mx.power(2.0, part_scores - top)
        total = total + mx.sum(weights, axis=-1, keepdims=True)
        out = out + weights @ v
    return out / total
