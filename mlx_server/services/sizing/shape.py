"""`ModelShape`: what decides a model's memory, read from config.json and the headers of its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlx_server.core.errors import MlxServeError
from mlx_server.core.model_config import context_length, text_config

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name -> dtype as safetensors writes it, shape."""

_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "U64": 64, "I32": 32, "U32": 32, "I16": 16, "U16": 16}
_FLOATS = ("BF16", "F16", "F32", "F64")
_FLOAT32_BYTES = 4
_ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})
_NOT_SERVED = re.compile(
    r"(^|\.)(vision_tower|vision_model|visual|multi_modal_projector|mm_projector|audio_tower|embed_vision|embed_audio|mtp)\."
)
_DROPPED = re.compile(r"rotary_emb\.inv_freq$")
_LAYER = re.compile(r"^(?P<layer>.*\.\d+)\..*\b(?P<kind>k_proj|v_proj|qkv_proj)\.weight$")


class SizingUnknownError(MlxServeError):
    """The files do not say how much K/V a token takes. The message is the reason, for a person."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """kv_elements: numbers of K and V of one token, over all layers. kv_elements_of_layer: of the largest layer.

    weight_bytes: in memory, as the backend holds them. element_bytes: of a number of K, V or an activation.
    window: tokens of the sliding window of `sliding_layers` layers; the pool keeps all tokens of these too.
    """

    model_type: str
    layers: int
    heads: int
    head_dim: int
    hidden: int
    intermediate: int
    kv_elements: int
    kv_elements_of_layer: int
    context: int
    weight_bytes: int
    element_bytes: int
    window: int | None
    sliding_layers: int
    is_multimodal: bool

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in all layers."""
        return self.kv_elements * self.element_bytes


def read_shape(config: dict[str, Any], tensors: Tensors, as_float32: bool) -> ModelShape:
    """as_float32: the backend holds every floating-point number as float32 (MLX on the CPU).

    Raises `SizingUnknownError` for models whose state is not K and V of every token in every layer.
    """
    text = {**config, **text_config(config)}
    _check_plain(text)
    served = {name: about for name, about in tensors.items() if _is_served(name, text)}
    layers, heads, hidden = (_number(text, key) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    given = text.get("head_dim")
    head_dim = given if isinstance(given, int) else hidden // heads
    by_layer = _kv_elements(served, text)
    if len(by_layer) != layers:
        raise SizingUnknownError(
            f"{len(by_layer)} of its {layers} layers have K and V projections as far as the weights' names tell; "
            "what the others keep for a token is not known before it is loaded"
        )
    return ModelShape(
        model_type=str(config.get("model_type")),
        layers=layers,
        heads=heads,
        head_dim=head_dim,
        hidden=hidden,
        intermediate=next((int(text[key]) for key in ("intermediate_size", "ffn_dim") if text.get(key)), 4 * hidden),
        kv_elements=sum(by_layer.values()),
        kv_elements_of_layer=max(by_layer.values()),
        context=context_length(config),
        weight_bytes=sum(_held_bytes(*about, as_float32) for about in served.values()),
        element_bytes=_FLOAT32_BYTES if as_float32 else _float_bytes(served),
        window=_window(text),
        sliding_layers=_sliding_layers(text, layers),
        is_multimodal=bool(text_config(config)),
    )


def _check_plain(text: dict[str, Any]) -> None:
    if text.get("kv_lora_rank"):
        raise SizingUnknownError(
            "it compresses K and V (multi-head latent attention); what is kept is its code's choice"
        )
    if text.get("num_kv_shared_layers"):
        raise SizingUnknownError("some of its layers share K and V with others; which is its code's choice")
    kinds = text.get("layer_types") or text.get("layers_block_type") or []
    other = sorted({str(kind) for kind in kinds} - _ATTENTION)
    if other:
        raise SizingUnknownError(f"it keeps state other than K and V per token ({', '.join(other)} layers)")


def _number(text: dict[str, Any], key: str) -> int:
    value = text.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SizingUnknownError(f"config.json names no {key}")
    return value


def _is_served(name: str, text: dict[str, Any]) -> bool:
    """Whether the tensor is kept in memory: mlx-lm leaves out what the language model does not need."""
    if _NOT_SERVED.search(name) or _DROPPED.search(name):
        return False
    return not (text.get("tie_word_embeddings") and re.search(r"(^|\.)lm_head\.", name))


def _kv_elements(tensors: Tensors, text: dict[str, Any]) -> dict[str, int]:
    """By layer: the rows of its K and V projections are what a token leaves in the cache."""
    found: dict[str, int] = {}
    for name, (_, shape) in tensors.items():
        match = _LAYER.match(name)
        if match is None:
            continue
        rows = shape[0]
        if match["kind"] == "qkv_proj":
            heads = _number(text, "num_attention_heads")
            kv_heads = int(text.get("num_key_value_heads") or heads)
            rows = rows * 2 * kv_heads // (heads + 2 * kv_heads)
        found[match["layer"]] = found.get(match["layer"], 0) + rows
    return found


def _held_bytes(dtype: str, shape: tuple[int, ...], as_float32: bool) -> int:
    count = math.prod(shape)
    return count * _FLOAT32_BYTES if as_float32 and dtype in _FLOATS else count * _BITS.get(dtype, 8) // 8


def _float_bytes(tensors: Tensors) -> int:
    """Of the floating-point type that most of the model has: its activations have it too."""
    counts = dict.fromkeys(_FLOATS, 0)
    for dtype, shape in tensors.values():
        if dtype in counts:
            counts[dtype] += math.prod(shape)
    most = max(counts, key=counts.__getitem__)
    return min(_BITS[most] // 8, _FLOAT32_BYTES)


def _window(text: dict[str, Any]) -> int | None:
    window = text.get("sliding_window")
    used = text.get("use_sliding_window", True)
    return window if isinstance(window, int) and window > 0 and used else None


def _sliding_layers(text: dict[str, Any], layers: int) -> int:
    """Of how many it is known that a window limits them."""
    if _window(text) is None:
        return 0
    pattern = text.get("sliding_window_pattern")
    if isinstance(kinds := text.get("layer_types"), list):
        return sum(kind == "sliding_attention" for kind in kinds)
    if isinstance(pattern, int) and pattern > 0:
        return layers - layers // pattern
    if isinstance(pattern, str) and pattern:
        return sum(pattern[i % len(pattern)] == "L" for i in range(layers))
    return 0
