"""The bare MLX loop: mlx-lm's model and dense cache at a fixed batch, one step ahead, nothing else."""

from __future__ import annotations

import time
from typing import Any

import mlx_server.runner  # noqa: F401  (loads OpenBLAS, which must come before MLX)

# isort: split
import mlx.core as mx
from mlx_lm.models.cache import KVCache


def dense_loop(model: Any, prompts: list[tuple[int, ...]], max_tokens: int) -> tuple[float, float]:
    """(prefill seconds, decode tokens per second) of equally long prompts, greedy."""
    caches = [KVCache() for _ in model.layers]
    start = time.perf_counter()
    hidden = model.model(mx.array(prompts), cache=caches)[:, -1:]
    token = mx.argmax(model.model.embed_tokens.as_linear(hidden)[:, -1], axis=-1)
    mx.eval(token)
    prefilled = time.perf_counter()
    previous = None
    for _ in range(max_tokens - 1):
        token = mx.argmax(model(token[:, None], cache=caches)[:, -1], axis=-1)
        mx.async_eval(token)
        if previous is not None:
            previous.tolist()
        previous = token
    token.tolist()
    return prefilled - start, len(prompts) * (max_tokens - 1) / (time.perf_counter() - prefilled)
