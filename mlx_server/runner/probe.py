"""The load-time parity probe: does this model, paged and batched, compute what it computes alone?

A list of model names cannot know that; the model itself can. Random sequences are pushed through the paged path
(chunked, committed, ragged, mixed with decodes, also with as many rows as KV heads) and every logit row is compared
with the model's own plain forward pass. It runs twice: on a shrunken clone of the same configuration, whose
windows are small enough to be passed, and on the loaded weights.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path
from mlx_lm.utils import _get_classes

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.messages import SamplingParams
from mlx_server.core.model_config import context_length
from mlx_server.core.step import BLOCK_SIZE, Commit, Join, Segment, StepPlan
from mlx_server.runner.kv_pool import KVPool
from mlx_server.runner.model_runner import ModelRunner
from mlx_server.runner.sampler import Sampler
from mlx_server.runner.servable import ServableModel

log = logging.getLogger(__name__)

CLONE_TOLERANCE = 1e-3
"""Largest difference of two logits in the float32 clone, relative to the largest logit (or 1)."""

WEIGHTS_TOLERANCE = {mx.float32: 1e-3, mx.float16: 5e-2, mx.bfloat16: 1e-1}
"""The same for the loaded weights, by the type of their K/V: half precision rounds differently by shape."""

_CLONE_WINDOW = 40
_CLONE_CONTEXT = 64  # what RoPE scaling calls the original context: the probe's sequences pass it
_LENGTHS = (112, 72, 20)
_STEPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 64), (2, 5)),
    ((0, 32), (1, 40)),
    ((0, 3), (1, 17), (2, 1)),
    *(((0, 1), (1, 1), (2, 1)),) * 8,
    ((1, 1), (0, 1)),
    ((2, 1), (0, 1)),
    ((1, 3), (0, 1)),
    ((1, 1),),
)
"""Each step: (sequence, tokens). Three rows, then two (the clone has two KV heads), then one."""


def probe(config: dict[str, Any], servable: ServableModel) -> None:
    """Raise `ModelLoadError` unless the paged path is proven to equal the plain one."""
    context = context_length(config)
    if context < max(_LENGTHS):  # learned positions are a table, and the device checks no index
        raise ModelLoadError(f"the model's context of {context} tokens is too short; {max(_LENGTHS)} are needed")
    clone, why = _clone(config)
    if clone is not None:
        _expect(_difference(clone), CLONE_TOLERANCE, "a shrunken clone of its configuration")
    else:
        windows = [spec.window for spec in servable.layers if spec.window is not None]
        if max([*windows, *_configured_windows(config)], default=0) > max(_LENGTHS):
            raise ModelLoadError(f"the model has sliding windows that could not be probed: {why}")
        log.warning("no shrunken clone could be made (%s); parity is probed on the loaded weights alone", why)
    tolerance = WEIGHTS_TOLERANCE.get(servable.layers[0].dtype, CLONE_TOLERANCE)
    _expect(_difference(servable), tolerance, "its own weights")


def _is_window(key: str) -> bool:
    return "window" in key and key != "max_window_layers"


def _configured_windows(config: dict[str, Any]) -> list[int]:
    """Windows that the configuration names, wherever; a model may apply one without its cache knowing."""
    found = [v for k, v in config.items() if _is_window(k) and isinstance(v, int)]
    for part in config.values():
        if isinstance(part, dict):
            found += _configured_windows(part)
    return found


def _expect(difference: float, tolerance: float, what: str) -> None:
    if not difference <= tolerance:
        raise ModelLoadError(
            f"the model cannot be served exactly: on {what}, batched and paged logits differ from its own forward "
            f"pass by {difference:.2g} of the largest logit (tolerance {tolerance:.0e})"
        )


def _difference(servable: ServableModel) -> float:
    try:
        return _run(servable)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        text = " ".join(str(error).split())[:200]
        raise ModelLoadError(f"the model's code does not accept the paged cache: {text}") from error


def _run(servable: ServableModel) -> float:
    """The largest difference between paged and plain logits, relative to the largest plain logit (or 1)."""
    keys = mx.random.split(mx.random.key(7), len(_LENGTHS))
    sequences: list[list[int]] = [
        mx.random.randint(1, servable.vocab_size, (n,), key=key).tolist()  # type: ignore[misc]
        for n, key in zip(_LENGTHS, keys, strict=True)
    ]
    plain = [servable.plain_logits(tokens) for tokens in sequences]
    scale = max(1.0, *(_largest(p) for p in plain))
    rows = _ProbeRows(servable, sequences)
    worst = 0.0
    for step in _STEPS:
        paged = rows.run(step)
        ends = mx.stack([plain[i][rows.done[i] - 1] for i, _ in step])
        difference = _largest(paged.astype(mx.float32) - ends.astype(mx.float32))
        if math.isnan(difference):
            return math.nan
        worst = max(worst, difference)
    return worst / scale


def _largest(x: mx.array) -> float:
    value: Any = mx.max(mx.abs(x)).item()
    return float(value)


class _ProbeRows:
    """Drives a small `ModelRunner` through `_STEPS` by hand; blocks are handed out in a scattered order."""

    def __init__(self, servable: ServableModel, sequences: list[list[int]]) -> None:
        num_blocks = sum(-(-n // BLOCK_SIZE) for n in _LENGTHS)
        pool = KVPool(servable.layers, num_blocks)
        self._runner = ModelRunner(servable, pool, Sampler(servable.vocab_size, ()), kept_bytes_limit=pool.nbytes)
        self._sequences = sequences
        self._free = sorted(range(num_blocks), key=lambda b: (b * 5) % 7)
        self._committed = [0] * len(sequences)
        self._step = 0
        self.done = [0] * len(sequences)
        greedy = SamplingParams(max_tokens=1, temperature=0.0)
        joins = tuple(Join(str(i), greedy, (), None, (), 0) for i in range(len(sequences)))
        self._runner.launch(StepPlan(0, (), (), joins, (), 0))

    def run(self, step: tuple[tuple[int, int], ...]) -> mx.array:
        """One step; commits every other one. Logits `[len(step), vocab]` after each segment's last token."""
        self._step += 1
        if self._step % 2 == 0:
            self._commit()
        segments = []
        for i, n in step:
            tokens = self._sequences[i][self.done[i] : self.done[i] + n]
            segments.append(Segment(str(i), self.done[i], tuple(tokens), True, 0))
            self.done[i] += n
        return self._runner.logits(segments)

    def _commit(self) -> None:
        commits = []
        for i, done in enumerate(self.done):
            full = (done - self._committed[i]) // BLOCK_SIZE
            if full:
                blocks = tuple(self._free.pop() for _ in range(full))
                commits.append(Commit(str(i), blocks, full * BLOCK_SIZE))
                self._committed[i] += full * BLOCK_SIZE
        if commits:
            self._runner.launch(StepPlan(0, tuple(commits), (), (), (), 0))


# ---- the clone -------------------------------------------------------------------------------


def _clone(config: dict[str, Any]) -> tuple[ServableModel | None, str]:
    """A tiny float32 model of the same configuration with random weights; None and why it cannot be made."""
    try:
        small = shrink(config)
        model_class, args_class = _get_classes(small)
        model = model_class(args_class.from_dict(small))
        keys = iter(mx.random.split(mx.random.key(11), 4096))

        def randomise(path: str, value: Any) -> Any:
            if not isinstance(value, mx.array) or not mx.issubdtype(value.dtype, mx.floating):
                return value
            noise = mx.random.normal(value.shape, key=next(keys))
            if value.ndim < 2:
                return value.astype(mx.float32) + 0.3 * noise
            return noise / value.shape[-1] ** 0.5

        model.update(tree_map_with_path(randomise, model.parameters()))
        model.eval()
        mx.eval(model.parameters())
        return ServableModel(model), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a configuration may refuse to shrink in any way
        return None, " ".join(str(error).split())[:200] or type(error).__name__


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with few layers, two KV heads, a small vocabulary and windows of a few blocks.

    What decides about correctness stays: layer kinds and their order, head ratio, RoPE, norms, scales.
    """
    small = copy.deepcopy(config)
    _shrink_part(small)
    for key in ("quantization", "quantization_config"):
        small.pop(key, None)
    return small


_LAYER_KEYS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")
_MOST: tuple[tuple[Callable[[str], bool], int], ...] = (
    (lambda k: k == "vocab_size", 192),
    (_is_window, _CLONE_WINDOW),
    (lambda k: k == "original_max_position_embeddings", _CLONE_CONTEXT),
    (lambda k: "intermediate_size" in k or k in ("ffn_dim", "n_inner"), 64),
    (lambda k: k in ("num_experts", "num_local_experts", "n_routed_experts"), 8),
)


def _shrink_part(part: dict[str, Any]) -> None:
    layers_key = next((k for k in _LAYER_KEYS if isinstance(part.get(k), int)), None)
    if layers_key is not None:
        _shrink_layers(part, layers_key)
        _shrink_heads(part)
    for key, value in part.items():
        if isinstance(value, dict):
            _shrink_part(value)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            continue
        for applies, most in _MOST:
            if applies(key):
                part[key] = min(value, most)


def _shrink_layers(part: dict[str, Any], layers_key: str) -> None:
    """Keep as many layers as it takes to see every kind once, at least two, and cut per-layer lists to that."""
    total = int(part[layers_key])
    kinds = part.get("layer_types")
    period = [v for k, v in part.items() if isinstance(v, int) and ("pattern" in k or "interval" in k) and v > 0]
    if isinstance(part.get("sliding_window_pattern"), str):
        period.append(len(part["sliding_window_pattern"]))
    keep = max([2, *period])
    if isinstance(kinds, list) and kinds:
        keep = max(keep, 1 + max(kinds.index(kind) for kind in set(kinds)))
    keep = min(keep, total, 12)
    for key, value in part.items():
        if isinstance(value, list) and len(value) == total:
            part[key] = value[:keep]
    part[layers_key] = keep


def _shrink_heads(part: dict[str, Any]) -> None:
    heads, hidden = part.get("num_attention_heads"), part.get("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int):
        return
    kv_heads = part.get("num_key_value_heads")
    kv = kv_heads if isinstance(kv_heads, int) and kv_heads > 0 else heads
    head_dim = part.get("head_dim") if isinstance(part.get("head_dim"), int) else hidden // heads
    small_kv = min(kv, 2)
    small_heads = small_kv * (heads // kv)
    part["num_attention_heads"] = small_heads
    if isinstance(kv_heads, int):
        part["num_key_value_heads"] = small_kv
    part["hidden_size"] = small_heads * int(head_dim or 0)
