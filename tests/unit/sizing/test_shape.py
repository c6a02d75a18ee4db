"""What is read from a model's files is what the engine then reports."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_server.core.settings import Settings
from mlx_server.daemon.model_headers import read_headers
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.runner.assemble import assemble
from mlx_server.runner.device import compute_device
from mlx_server.runner.memory import pool_blocks
from mlx_server.services.sizing.shape import ModelShape, SizingUnknownError, read_shape
from tests import tiny_models

FAMILIES = ("llama", "qwen2", "phi3", "mixtral", "gpt_oss", "gemma3_text", "cohere2", "exaone4", "stablelm")


def shape_of(folder: Path) -> ModelShape:
    return read_shape(*read_headers(str(folder)), as_float32=compute_device().is_cpu)


def check_agrees(folder: Path, settings: Settings) -> None:
    shape = shape_of(folder)
    _, info = assemble(settings, folder, "x", lambda stage, fraction: None, is_proven=True)
    assert (shape.kv_bytes_per_token, shape.weight_bytes) == (info.kv_bytes_per_token, info.weight_bytes)
    assert pool_blocks(settings, shape.kv_bytes_per_token, shape.weight_bytes, shape.context) == info.num_blocks
    assert shape.model_type == info.model_type


def test_the_demo_model() -> None:
    check_agrees(DEMO_FOLDER, Settings(kv_memory=64 << 20))
    shape = shape_of(DEMO_FOLDER)
    assert (shape.layers, shape.heads, shape.head_dim, shape.context, shape.window) == (6, 4, 64, 8192, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, tmp_path: Path) -> None:
    folder = tiny_models.save(tiny_models.family_config(family), tmp_path)
    check_agrees(folder, Settings(kv_memory=1 << 20))


def test_a_quantized_model(tmp_path: Path) -> None:
    """Packed words stay as they are; scales and biases are held as other numbers are."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    config = {**tiny_models.family_config("llama"), "quantization": {"group_size": 32, "bits": 4}}
    model = tiny_models.build(config)
    model.set_dtype(mx.float16)
    nn.quantize(model, group_size=32, bits=4)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (tmp_path / "config.json").write_text(json.dumps(config))
    check_agrees(tmp_path, Settings(kv_memory=1 << 20))


def test_half_precision_is_held_as_it_is_stored_but_on_the_cpu() -> None:
    headers = read_headers(str(DEMO_FOLDER))
    stored, held = read_shape(*headers, as_float32=False), read_shape(*headers, as_float32=True)
    assert held.weight_bytes == 2 * stored.weight_bytes
    assert held.kv_bytes_per_token == 2 * stored.kv_bytes_per_token == 6 * 2 * 2 * 64 * 4


def test_windows_are_noted(tmp_path: Path) -> None:
    for family in ("gpt_oss", "gemma3_text", "exaone4"):
        shape = shape_of(tiny_models.save(tiny_models.family_config(family), tmp_path / family))
        assert (shape.window, shape.sliding_layers) == (48, 2), family


CONFIG: dict[str, Any] = {
    "model_type": "x",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "max_position_embeddings": 512,
}
TENSORS = {
    f"model.layers.{layer}.self_attn.{kind}_proj.weight": ("BF16", (32, 64)) for layer in range(2) for kind in "kv"
}


def test_a_multimodal_model_is_its_language_part() -> None:
    text = {key: CONFIG[key] for key in CONFIG if key != "model_type"}
    tensors = {
        **{f"language_model.{name}": about for name, about in TENSORS.items()},
        "vision_tower.encoder.layers.0.self_attn.k_proj.weight": ("BF16", (1024, 1024)),
        "multi_modal_projector.linear.weight": ("BF16", (1024, 1024)),
    }
    shape = read_shape({"model_type": "x", "text_config": text}, tensors, as_float32=False)
    alone = read_shape(CONFIG, TENSORS, as_float32=False)
    assert shape.is_multimodal and not alone.is_multimodal
    assert (shape.kv_elements, shape.weight_bytes, shape.context) == (alone.kv_elements, alone.weight_bytes, 512)


@pytest.mark.parametrize(
    ("config", "drop", "words"),
    [
        ({"kv_lora_rank": 512}, "", "latent attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "", "linear_attention layers"),
        ({"num_kv_shared_layers": 1}, "", "share K and V"),
        ({}, "layers.1.", "1 of its 2 layers"),
        ({}, "layers.", "0 of its 2 layers"),
        ({"num_hidden_layers": None}, "", "no num_hidden_layers"),
        ({"num_attention_heads": 0}, "", "no num_attention_heads"),
    ],
)
def test_what_cannot_be_told_is_said(config: dict[str, Any], drop: str, words: str) -> None:
    tensors = {name: about for name, about in TENSORS.items() if not drop or drop not in name}
    with pytest.raises(SizingUnknownError, match=words):
        read_shape({**CONFIG, **config}, tensors, as_float32=False)


def test_what_mlx_lm_leaves_out_is_not_counted() -> None:
    tensors = {
        **TENSORS,
        "lm_head.weight": ("BF16", (100, 64)),
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (8,)),
    }
    alone = read_shape(CONFIG, TENSORS, as_float32=False).weight_bytes
    assert read_shape({**CONFIG, "tie_word_embeddings": True}, tensors, as_float32=False).weight_bytes == alone
    assert read_shape(CONFIG, tensors, as_float32=False).weight_bytes == alone + 100 * 64 * 2
