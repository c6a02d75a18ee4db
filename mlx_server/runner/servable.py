"""A loaded mlx-lm model as the runner sees it: layer shapes, and logits for chosen rows only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from mlx_server.core.errors import ModelLoadError
from mlx_server.runner import attention
from mlx_server.runner.kv_pool import LayerSpec

_BODIES = ("model", "language_model.model", "transformer", "backbone", "model.model")
"""Where mlx-lm models keep the part before `lm_head`; whichever has the right output shape is used."""


class ServableModel:
    """Wraps an unmodified mlx-lm model. Creating one runs a single token through it.

    vocab_size: width of the logits. layers: one spec per cache the model asks for.
    Raises `ModelLoadError` for a model that keeps state other than K/V per token.
    """

    def __init__(self, model: Module) -> None:
        self._model: Any = model
        self._rows = _RowSelection()
        attention.install()
        self.layers = _layer_specs(model)
        self._slices = self._slice_before_head()
        self.vocab_size = int(self._plain(mx.array([[0]])).shape[-1])

    def forward(self, tokens: mx.array, caches: Sequence[Any], rows: mx.array) -> mx.array:
        """tokens `int32[T, 1]`, one cache per layer, rows `int32[R]` -> logits `[R, vocab]`."""
        num_tokens = tokens.shape[0]
        self._rows.wanted = (rows, num_tokens) if self._slices else None
        try:
            logits = self._model(tokens, cache=list(caches))
        finally:
            self._rows.wanted = None
        chosen = logits if self._slices else _take_rows(logits, rows, num_tokens)
        return chosen[:, 0]

    def plain_logits(self, tokens: Sequence[int]) -> mx.array:
        """The model's own forward pass over one sequence with its own caches: `[len, vocab]`."""
        logits = self._plain(mx.array([list(tokens)], dtype=mx.int32))
        return logits[0]

    def _plain(self, tokens: mx.array) -> mx.array:
        logits: mx.array = self._model(tokens, cache=make_prompt_cache(self._model))
        return logits

    def _slice_before_head(self) -> bool:
        """Make the model drop hidden states nobody needs before `lm_head`. False: no place was found.

        The body's class is replaced by a subclass whose call selects rows, so the model's own code, and
        everything else that looks at the body, is left as it is.
        """
        for path in _BODIES:
            body: Any = self._model
            for name in path.split("."):
                body = getattr(body, name, None)
            if not isinstance(body, Module):
                continue
            original = type(body)
            body.__class__ = _selecting(original, self._rows)
            if self._selects():
                return True
            body.__class__ = original
        return False

    def _selects(self) -> bool:
        self._rows.wanted = (mx.array([0], dtype=mx.int32), 2)
        try:
            shape = self._model(mx.zeros((2, 1), dtype=mx.int32), cache=make_prompt_cache(self._model)).shape
        except (TypeError, ValueError, AttributeError, IndexError):
            return False
        finally:
            self._rows.wanted = None
        return len(shape) == 3 and tuple(shape[:2]) == (1, 1)


class _RowSelection:
    """What the body of the model keeps in the pass that is running: (rows, tokens of the pass); None for all."""

    wanted: tuple[mx.array, int] | None = None


def _take_rows(x: mx.array, rows: mx.array, num_tokens: int) -> mx.array:
    """x `[num_tokens, 1, dim]` -> `[rows, 1, dim]`. Any other shape raises ValueError: the device checks no index."""
    if x.ndim != 3 or tuple(x.shape[:2]) != (num_tokens, 1):
        raise ValueError(f"the model made {tuple(x.shape)} out of {num_tokens} rows of one token")
    return x[rows]


def _selecting(original: type[Module], selection: _RowSelection) -> type[Module]:
    class Selecting(original):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            hidden = super().__call__(*args, **kwargs)
            if selection.wanted is None or not isinstance(hidden, mx.array):
                return hidden
            return _take_rows(hidden, *selection.wanted)

    Selecting.__name__ = original.__name__
    return Selecting


class _ShapeRecorder:
    """A cache that keeps nothing but the shapes of the one token it is given."""

    def __init__(self) -> None:
        self.offset = mx.zeros((1,), dtype=mx.int32)
        self.seen: tuple[tuple[int, ...], tuple[int, ...], mx.Dtype] | None = None

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> None:
        return None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.seen = (tuple(keys.shape), tuple(values.shape), keys.dtype)
        return keys, values


def _layer_specs(model: Any) -> tuple[LayerSpec, ...]:
    own = make_prompt_cache(model)
    windows = [_window(i, cache) for i, cache in enumerate(own)]
    recorders = [_ShapeRecorder() for _ in own]
    mx.eval(model(mx.array([[0]]), cache=recorders))
    specs = []
    for i, (recorder, window) in enumerate(zip(recorders, windows, strict=True)):
        if recorder.seen is None:
            raise ModelLoadError(f"layer {i} of the model does not use its KV cache the way mlx-lm's caches are used")
        k, v, dtype = recorder.seen
        if k[1] != v[1]:
            raise ModelLoadError(f"layer {i} has {k[1]} key heads and {v[1]} value heads; they must be equal")
        specs.append(LayerSpec(kv_heads=k[1], k_dim=k[3], v_dim=v[3], dtype=dtype, window=window))
    return tuple(specs)


def _window(layer: int, cache: Any) -> int | None:
    if type(cache) is KVCache:
        return None
    if type(cache) is RotatingKVCache:
        return int(cache.max_size)
    raise ModelLoadError(
        f"layer {layer} keeps per-sequence state ({type(cache).__name__}), which a paged KV cache cannot hold; "
        "models with recurrent, linear-attention or compound caches are not served yet"
    )
