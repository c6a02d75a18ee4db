"""What a model folder says of itself, without loading the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.model_config import context_length
from mlx_server.daemon.model_headers import read_headers

TESTED_TYPES = frozenset(
    {
        "cohere2",
        "exaone4",
        "gemma3_text",
        "glm4",
        "gpt_oss",
        "granite",
        "llama",
        "mixtral",
        "olmo2",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
"""Families whose text is compared with mlx-lm's own by tests/parity (`test_tested_types_are_those_of_the_tests`)."""

REFUSED_TYPES = {
    "gemma2": "it computes attention itself, with soft caps and a mask of its own",
    "mamba2": "it keeps recurrent state, which cannot be paged",
    "recurrent_gemma": "it keeps recurrent state, which cannot be paged",
    "qwen3_next": "it keeps linear-attention state, which cannot be paged",
}
_PACKED_DTYPE = "U32"
_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """context_tokens: that the model knows. parameters: of the model as it was before quantization.

    quantization: for a person, e.g. '4 bits, groups of 64' or 'none (BF16)'. size_bytes: of the weights files.
    served: whether it is served exactly, as far as that is known before it is loaded.
    """

    model_type: str
    context_tokens: int
    parameters: int
    quantization: str
    size_bytes: int
    served: str


def read_facts(folder: Path) -> ModelFacts:
    """Raises `ModelLoadError` for files that cannot be read."""
    config, tensors = read_headers(str(folder))
    return ModelFacts(
        model_type=config["model_type"],
        context_tokens=context_length(config),
        parameters=_count_parameters(tensors, config),
        quantization=_quantization(tensors, config),
        size_bytes=sum(file.stat().st_size for file in folder.glob("model*.safetensors")),
        served=_served(config),
    )


def _count_parameters(tensors: dict[str, tuple[str, tuple[int, ...]]], config: dict[str, Any]) -> int:
    """A quantized matrix is packed into words of 32 bits, with its scales and biases beside it."""
    packed = {
        name.removesuffix(".weight")
        for name, (dtype, _) in tensors.items()
        if name.endswith(".weight") and dtype == _PACKED_DTYPE
    }
    total = 0
    for name, (_, shape) in tensors.items():
        layer, _, kind = name.rpartition(".")
        if layer not in packed:
            total += math.prod(shape)
        elif kind == "weight":
            total += math.prod(shape) * _WORD_BITS // _bits(config, layer)
        elif kind not in ("scales", "biases"):
            total += math.prod(shape)
    return total


def _bits(config: dict[str, Any], layer: str) -> int:
    """Of a packed layer; a layer may have its own. Raises `ModelLoadError` where config.json does not say."""
    general = _scheme(config)
    own = general.get(layer)
    bits = (own if isinstance(own, dict) else general).get("bits")
    if not isinstance(bits, int) or not 1 <= bits <= _WORD_BITS:
        raise ModelLoadError(f"the weights of {layer} are packed, and config.json does not say into how many bits")
    return bits


def _scheme(config: dict[str, Any]) -> dict[str, Any]:
    """MLX's quantization; empty for none."""
    scheme = config.get("quantization")
    return scheme if isinstance(scheme, dict) else {}


def _quantization(tensors: dict[str, tuple[str, tuple[int, ...]]], config: dict[str, Any]) -> str:
    scheme = _scheme(config)
    if scheme:
        mode = f", {scheme['mode']}" if "mode" in scheme else ""
        return f"{scheme.get('bits')} bits, groups of {scheme.get('group_size')}{mode}"
    foreign = config.get("quantization_config")
    if isinstance(foreign, dict):
        return f"{foreign.get('quant_method', 'unknown')}, not MLX's"
    sizes: dict[str, int] = {}
    for dtype, shape in tensors.values():
        sizes[dtype] = sizes.get(dtype, 0) + math.prod(shape)
    return f"none ({max(sizes, key=sizes.__getitem__)})" if sizes else "none"


def _served(config: dict[str, Any]) -> str:
    model_type = config["model_type"]
    if config.get("model_file") is not None:
        return "no: config.json asks to run code that comes with the model"
    if reason := REFUSED_TYPES.get(model_type):
        return f"no: {reason}"
    if model_type in TESTED_TYPES:
        return "yes: this family is held by tests; the probe looks again at load"
    return "the probe decides at load"
