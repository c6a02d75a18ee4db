"""Small random-weight models of real architectures, saved as mlx-lm model folders."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import mlx_server.runner  # noqa: F401  (loads OpenBLAS, which must come before MLX)

# isort: split
import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 256,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SLIDING = {"sliding_window": 48, "layer_types": ["sliding_attention", "full_attention"] * 2}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "mixtral": _MOE,
    "phi3": {"rope_scaling": None, "original_max_position_embeddings": 2048},
    "granite": {
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "glm4": {"attention_bias": False, "partial_rotary_factor": 0.5},
    "starcoder2": {"norm_epsilon": 1e-5},
    "stablelm": {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5, "use_qkv_bias": False},
    "smollm3": {"no_rope_layer_interval": 2},
    "olmo2": {},
    "olmo3": _SLIDING,
    "cohere2": {
        "num_key_value_heads": 4,
        "layer_norm_eps": 1e-5,
        "logit_scale": 1.0,
        "sliding_window": 48,
        "sliding_window_pattern": 2,
        "attention_bias": False,
        "layer_norm_bias": False,
    },
    "gemma3_text": {"sliding_window": 48, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
    "exaone4": {"sliding_window": 48, "sliding_window_pattern": "LG", "rope_scaling": None},
    "gpt_oss": {
        **_MOE,
        **_SLIDING,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    },
}
"""Every family has at least one test per path. Windows are 48 tokens, so every test prompt passes them."""

BENCH_CONFIG: dict[str, Any] = {
    **_BASE,
    "model_type": "qwen3",
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1536,
    "vocab_size": 8192,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
"""The model of the benchmarks: 33.6 M parameters."""


def family_config(name: str) -> dict[str, Any]:
    """config.json of a tiny model of this family."""
    return {**_BASE, **FAMILIES[name], "model_type": name}


def build(config: dict[str, Any], seed: int = 0, spread: float = 1.5) -> Any:
    """A random-weight mlx-lm model.

    spread: matrices are this much larger than a unit-gain initialisation, so that attention is peaked and the
    best two logits are far apart: a wrong key or mask then changes tokens, and rounding does not.
    """
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))

    def scale(value: Any) -> Any:
        if value.ndim >= 2:
            return mx.random.normal(value.shape) * (spread / value.shape[-1] ** 0.5)
        return value + 0.2 * mx.random.normal(value.shape)

    model.update(tree_map(scale, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model


def save(config: dict[str, Any], folder: Path, seed: int = 0, spread: float = 1.5) -> Path:
    """Write a model folder that `mlx_lm.load_model` loads."""
    folder.mkdir(parents=True, exist_ok=True)
    model = build(config, seed, spread)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))
    return folder
