"""A model that the paged path would serve wrongly is refused at load, with the reason."""

import inspect
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models import llama

from mlx_server.core.errors import ModelLoadError
from mlx_server.runner import loader
from mlx_server.runner.probe import _CLONE_WINDOW, _LENGTHS, probe, shrink
from tests import tiny_models

SMALL: dict[str, Any] = {**tiny_models._BASE, "num_hidden_layers": 2}
WINDOWED: dict[str, Any] = {**SMALL, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}


def prove(config: dict[str, Any], folder: Path, spread: float = 1.5) -> loader.LoadedModel:
    tiny_models.save(config, folder, spread=spread)
    model = loader.load(folder, lambda stage, fraction: None)
    probe(model.config, model.servable)
    return model


def refusal(config: dict[str, Any], folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        prove(config, folder)
    return str(caught.value)


# ---- what cannot be served --------------------------------------------------------------------


def test_gemma2_with_its_own_softmax_is_refused(tmp_path: Path) -> None:
    config = {
        **SMALL,
        "model_type": "gemma2",
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }
    assert "does not accept the paged cache" in refusal(config, tmp_path)


RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 16, "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 4},
    "mamba2": {
        "num_heads": 4,
        "head_dim": 32,
        "state_size": 16,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
    },
    "recurrent_gemma": {
        "attention_bias": False,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 48,
        "embeddings_scale_by_sqrt_dim": True,
        "block_types": ["recurrent", "attention"],
        "_block_types": ["recurrent", "attention"],
    },
    "qwen3_next": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 2,
    },
}


@pytest.mark.parametrize("model_type", sorted(RECURRENT))
def test_recurrent_models_are_refused(model_type: str, tmp_path: Path) -> None:
    reason = refusal({**SMALL, **RECURRENT[model_type], "model_type": model_type}, tmp_path)
    assert "per-sequence state" in reason
    assert "ArraysCache" in reason


def test_a_context_shorter_than_the_probe_is_refused(tmp_path: Path) -> None:
    """Learned positions are looked up in a table, and the device checks no index."""
    config = {**SMALL, "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "layer_norm_epsilon": 1e-5}
    short = config | {"n_ctx": 64, "n_positions": 64, "max_position_embeddings": 64}
    assert "64 tokens" in refusal(short, tmp_path / "short")
    size = max(_LENGTHS)
    prove(config | {"n_ctx": size, "n_positions": size, "max_position_embeddings": size}, tmp_path / "enough")


# ---- models that are wrong on purpose ---------------------------------------------------------

ROPE = "offset=cache.offset"
MASK = "create_attention_mask(\n                h, cache[self.swa_idx], window_size=self.sliding_window\n            )"

BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "rope with the position of the first row": (SMALL, ROPE, "offset=first_of(cache.offset)"),
    "rope with the longest row's position": (SMALL, ROPE, "offset=longest_of(cache.offset)"),
    "no rope in a batch": (SMALL, ROPE, "offset=cache.offset if isinstance(cache.offset, int) else cache.offset * 0"),
    "rope one position late": (
        SMALL,
        "keys = self.rope(keys, offset=cache.offset)",
        "keys = self.rope(keys, offset=cache.offset if isinstance(cache.offset, int) else cache.offset + 1)",
    ),
    "a window made by hand that a batch does not get": (WINDOWED, MASK, "own_window(h, self.sliding_window)"),
    "a window of another size in a batch": (
        WINDOWED,
        "window_size=self.sliding_window",
        "window_size=self.sliding_window + (8 if h.shape[1] == 1 else 0)",
    ),
    "attention that adds a bias of its own": (
        SMALL,
        "queries, keys, values, cache=cache",
        "queries * (1 + 0.1 * (queries.shape[2] > 1)), keys, values, cache=cache",
    ),
    "a call that depends on the batch": (SMALL, "return self.norm(h)", "return self.norm(h - 0.05 * h.mean(axis=0))"),
    "values of the neighbour": (
        SMALL,
        "keys, values = cache.update_and_fetch(keys, values)",
        "keys, values = cache.update_and_fetch(keys, mx.roll(values, 1, axis=0))",
    ),
    "a call that fails in a batch": (SMALL, "return self.norm(h)", "return self.norm(h.reshape(1, -1, h.shape[-1]))"),
}

HELPERS = """
def first_of(offset):
    return offset if isinstance(offset, int) else offset[:1] + 0 * offset

def longest_of(offset):
    return offset if isinstance(offset, int) else offset.max() + 0 * offset

def own_window(h, window):
    n = mx.arange(h.shape[1])
    return (n[:, None] >= n[None]) & (n[:, None] < n[None] + window)
"""


def install(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """A copy of mlx-lm's Llama with `old` replaced, under the model type 'altered'."""
    source = inspect.getsource(llama)
    assert old in source, "mlx-lm's llama.py has changed"
    # Full caches for all layers: the window is then in the mask alone.
    source = source.replace("RotatingKVCache(max_size=self.model.sliding_window)", "KVCache()")
    module = types.ModuleType("mlx_lm.models.altered")
    module.__package__ = "mlx_lm.models"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source.replace(old, new) + HELPERS, "altered.py", "exec"), vars(module))


@pytest.mark.parametrize("config", [SMALL, WINDOWED], ids=["full", "windowed"])
def test_the_unbroken_copy_is_served(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, "return self.norm(h)", "return self.norm(h)")
    prove({**config, "model_type": "altered"}, tmp_path)


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_broken_model_is_refused(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config, old, new = BROKEN[what]
    install(monkeypatch, old, new)
    reason = refusal({**config, "model_type": "altered"}, tmp_path)
    assert "cannot be served exactly" in reason or "does not accept" in reason


@pytest.mark.parametrize("rows", [2, 3])
def test_nan_is_not_parity(rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In some steps only; the last one has a single row and is right."""
    new = f"return self.norm(h) if h.shape[0] != {rows} else h * mx.nan"
    install(monkeypatch, "return self.norm(h)", new)
    assert "nan" in refusal({**SMALL, "model_type": "altered"}, tmp_path)


def test_long_windows_that_no_clone_can_show_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The loaded weights are probed over fewer tokens than a real window."""
    config = {**WINDOWED, "sliding_window": 1024, "model_type": "altered"}
    source = "assert self.vocab_size > 0"
    install(monkeypatch, source, source.replace("0", "192"))  # the clone has 192
    monkeypatch.setitem(sys.modules, "mlx_lm.models.altered", _with_rotating(sys.modules["mlx_lm.models.altered"]))
    assert "sliding windows that could not be probed" in refusal(config, tmp_path)


def _with_rotating(module: types.ModuleType) -> types.ModuleType:
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    def make_cache(self: Any) -> list[Any]:
        kinds = [layer.use_sliding for layer in self.layers]
        return [RotatingKVCache(max_size=self.model.sliding_window) if sliding else KVCache() for sliding in kinds]

    module.Model.make_cache = make_cache  # type: ignore[attr-defined]
    return module


# ---- odd but good models ----------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [2, 3, 5])
def test_a_tiny_vocabulary(vocab_size: int, tmp_path: Path) -> None:
    assert prove({**SMALL, "model_type": "llama", "vocab_size": vocab_size}, tmp_path).servable.vocab_size == vocab_size


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 1), (6, 3), (3, 3)])
def test_head_counts(heads: int, kv_heads: int, tmp_path: Path) -> None:
    config = {**SMALL, "model_type": "qwen3", "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    model = prove(config | {"hidden_size": 16 * heads}, tmp_path)
    assert {spec.kv_heads for spec in model.servable.layers} == {kv_heads}


@pytest.mark.parametrize("tied", [False, True])
def test_tied_and_untied_heads(tied: bool, tmp_path: Path) -> None:
    model = prove({**SMALL, "model_type": "llama", "tie_word_embeddings": tied}, tmp_path)
    assert model.servable._slices, "hidden states nobody needs are dropped before the head"
    assert model.servable.plain_logits([1, 2, 3]).shape == (3, SMALL["vocab_size"])


# ---- the clone --------------------------------------------------------------------------------


def test_the_clone_has_windows_that_the_probe_passes() -> None:
    config = tiny_models.family_config("gemma3_text") | {"sliding_window": 4096, "num_hidden_layers": 26}
    small = shrink(config | {"sliding_window_pattern": 6})
    assert small["sliding_window"] == _CLONE_WINDOW < min(n for n in _LENGTHS if n > 50)
    assert small["num_hidden_layers"] == 6, "a whole period, so that both kinds of layer are there"
    nested = shrink({"model_type": "x", "text_config": config, "vision_config": {"window_size": 7}})
    assert nested["text_config"]["sliding_window"] == _CLONE_WINDOW
    assert nested["vision_config"]["window_size"] == 7


def test_the_clone_keeps_one_layer_of_every_kind_and_the_head_ratio() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 4
    config = {**SMALL, "num_hidden_layers": 10, "layer_types": kinds, "num_attention_heads": 32}
    small = shrink(config | {"num_key_value_heads": 8, "hidden_size": 4096, "head_dim": 128, "vocab_size": 150_000})
    assert small["layer_types"] == kinds[:6]
    assert small["num_hidden_layers"] == 6
    assert (small["num_attention_heads"], small["num_key_value_heads"], small["head_dim"]) == (8, 2, 128)
    assert small["vocab_size"] == 192
    assert config["layer_types"] == kinds, "the configuration itself stays as it is"


def test_shrinking_a_shrunken_configuration_changes_nothing() -> None:
    for family in tiny_models.FAMILIES:
        once = shrink(tiny_models.family_config(family))
        assert json.dumps(shrink(once)) == json.dumps(once), family
