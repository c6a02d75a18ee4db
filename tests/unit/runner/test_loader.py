"""A model folder is data: what is broken is refused with a reason, and none of its code ever runs."""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.model_config import context_length
from mlx_server.runner import loader
from tests import tiny_models
from tests.step_driver import StepDriver

CONFIG: dict[str, Any] = {**tiny_models.family_config("llama"), "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(CONFIG, tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    for file in good.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def load(folder: Path) -> loader.LoadedModel:
    return loader.load(folder, lambda stage, fraction: None)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load(folder)
    return str(caught.value)


def configure(folder: Path, **fields: object) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **fields}))


def test_a_good_folder_loads(folder: Path) -> None:
    model = load(folder)
    assert model.servable.vocab_size == CONFIG["vocab_size"]
    assert len(model.servable.layers) == 2
    assert model.config["model_type"] == "llama"


# ---- code of the folder -----------------------------------------------------------------------


@pytest.fixture
def marker(folder: Path) -> Path:
    """A file that exists once any Python of the folder has run."""
    marker = folder / "it-ran"
    code = f"open({str(marker)!r}, 'w').close()\n"
    for name in ("evil.py", "modeling_evil.py", "configuration_evil.py", "llama.py", "__init__.py"):
        (folder / name).write_text(code)
    return marker


@pytest.mark.parametrize("value", ["evil.py", "", "../evil.py", ["evil.py"], {"a": 1}, 0, False])
def test_a_model_file_is_refused_and_not_executed(folder: Path, marker: Path, value: object) -> None:
    configure(folder, model_file=value)
    assert "never executes" in refusal(folder)
    assert not marker.exists()


def test_auto_map_is_ignored(folder: Path, marker: Path) -> None:
    names = {"AutoConfig": "configuration_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"}
    configure(folder, auto_map=names, trust_remote_code=True)
    load(folder)
    assert not marker.exists()


@pytest.mark.parametrize(
    "model_type", ["evil", "../evil", "..evil", "os", "base", "cache", "llama.evil", "/etc/passwd", ""]
)
def test_a_model_type_names_no_file_of_the_folder(
    folder: Path, marker: Path, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = set(sys.modules)
    configure(folder, model_type=model_type)
    assert "mlx-lm cannot load" in refusal(folder)
    assert not marker.exists()
    assert "evil" not in {name.rpartition(".")[2] for name in set(sys.modules) - before}


# ---- config.json ------------------------------------------------------------------------------


def test_a_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(folder)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '"x"', "{}", '{"model_type": null}', '{"model_type": 5}', "\x00", "[" * 100_000],
)
def test_a_config_that_is_no_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    refusal(folder)


def test_a_config_in_the_wrong_encoding(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe{\x00}\x00")
    refusal(folder)


def test_an_unknown_model_type_is_named(folder: Path) -> None:
    configure(folder, model_type="quux9")
    assert "quux9" in refusal(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": "wide"},
        {"hidden_size": 0},
        {"num_attention_heads": 0},
        {"num_hidden_layers": 5},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": None},
        {"vocab_size": 7},
        {"head_dim": 8},
        {"intermediate_size": 64},
        {"rope_scaling": {"type": "quux"}},
        {"rope_scaling": 7},
        {"quantization": "x"},
        {"text_config": "x"},
        {"text_config": [1]},
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_a_refusal_or_harmless(folder: Path, fields: dict[str, object]) -> None:
    """Never another exception than the one with a reason for a person."""
    configure(folder, **fields)
    if "text_config" in fields:
        load(folder)  # llama has no such field
    else:
        assert refusal(folder)


@pytest.mark.parametrize("text", ["[]", "null", "5", "{", "", '{"eos_token_id": "x"}', "\x00", "[" * 100_000])
def test_a_broken_generation_config_is_a_refusal_or_ignored(folder: Path, text: str) -> None:
    (folder / "generation_config.json").write_text(text)
    try:
        model = load(folder)
    except ModelLoadError:
        return
    assert model.eos_token_ids == ()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("max_position_embeddings", 777, 777),
        ("max_sequence_length", 778, 778),
        ("max_seq_len", 779, 779),
        ("n_positions", 780, 780),
        ("seq_length", 781, 781),
        ("n_ctx", 782, 782),
        ("max_position_embeddings", 0, 4096),
        ("max_position_embeddings", -5, 4096),
        ("max_position_embeddings", "long", 4096),
        ("unknown", 5, 4096),
        ("text_config", {"max_position_embeddings": 783}, 783),
    ],
)
def test_the_context_length(key: str, value: object, expected: int) -> None:
    assert context_length({key: value}) == expected


# ---- end tokens -------------------------------------------------------------------------------


def test_end_tokens_of_the_config(folder: Path) -> None:
    configure(folder, eos_token_id=9)
    assert load(folder).eos_token_ids == (9,)
    configure(folder, eos_token_id=[11, 9])
    assert load(folder).eos_token_ids == (9, 11)


def test_end_tokens_of_the_generation_config_win(folder: Path) -> None:
    configure(folder, eos_token_id=9)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    assert load(folder).eos_token_ids == (4, 5)


@pytest.mark.parametrize("eos", ["<end>", {"content": "<end>", "lstrip": False}])
def test_the_end_token_of_the_tokenizer_is_added(folder: Path, eos: object) -> None:
    configure(folder, eos_token_id=9)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    added = [{"id": 200, "content": "<end>"}, {"id": 201, "content": "<other>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert load(folder).eos_token_ids == (9, 200)


@pytest.mark.parametrize(
    ("config", "tokenizer"),
    [
        ("[]", "{}"),
        ("null", "{}"),
        ('{"eos_token": 5}', "{}"),
        ('{"eos_token": ["x"]}', '{"added_tokens": [{"id": 3, "content": "x"}]}'),
        ('{"eos_token": "x"}', "[]"),
        ('{"eos_token": "x"}', '{"added_tokens": null}'),
        ('{"eos_token": "x"}', '{"added_tokens": 5}'),
        ('{"eos_token": "x"}', '{"added_tokens": [5, null, {}]}'),
        ('{"eos_token": "x"}', '{"added_tokens": [{"content": "x"}]}'),
        ('{"eos_token": "x"}', '{"added_tokens": [{"content": "x", "id": "3"}]}'),
        ('{"eos_token": "x"}', "\x00"),
        ("{}", '{"added_tokens": [{"id": 3}]}'),
    ],
)
def test_broken_tokenizer_files_add_no_end_token(folder: Path, config: str, tokenizer: str) -> None:
    configure(folder, eos_token_id=9)
    (folder / "tokenizer_config.json").write_text(config)
    (folder / "tokenizer.json").write_text(tokenizer)
    assert load(folder).eos_token_ids == (9,)


# ---- weights ----------------------------------------------------------------------------------


def test_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "model*.safetensors" in refusal(folder)


def header_of(file: Path) -> tuple[dict[str, Any], bytes]:
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write(file: Path, header: object, body: bytes) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, 0.3, 0.9, -1])
def test_truncated_weights(folder: Path, keep: float) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    assert "malformed or truncated" in refusal(folder)


@pytest.mark.parametrize("length", [0, 2**31, 2**60, 2**63, 2**64 - 1])
def test_a_header_length_bomb(folder: Path, length: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    assert "malformed or truncated" in refusal(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"not json at all!", b"\xff" * 8, b"[" * 50_000])
def test_a_header_that_is_no_header(folder: Path, text: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 64)
    assert "malformed or truncated" in refusal(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 2**40]},
        {"data_offsets": [2**62, 2**62 + 64]},
        {"data_offsets": [64, 0]},
        {"data_offsets": [-64, 0]},
        {"data_offsets": [1]},
        {"data_offsets": "x"},
        {"shape": [2**40, 2**40]},
        {"shape": [2**32, 2**32, 2**32]},
        {"shape": [-1]},
        {"shape": "x"},
        {"dtype": "Q9"},
    ],
    ids=str,
)
def test_a_tensor_that_lies(folder: Path, change: dict[str, object]) -> None:
    file = folder / "model.safetensors"
    header, body = header_of(file)
    name = sorted(k for k in header if k != "__metadata__")[0]
    header[name] |= change
    write(file, header, body)
    assert "malformed or truncated" in refusal(folder)


def test_two_tensors_that_overlap(folder: Path) -> None:
    file = folder / "model.safetensors"
    header, body = header_of(file)
    same = [k for k in header if k.endswith("input_layernorm.weight")]
    header[same[0]]["data_offsets"] = header[same[1]]["data_offsets"]
    write(file, header, body)
    assert "malformed or truncated" in refusal(folder)


def test_every_shard_is_checked(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"\0" * 100)
    assert "model-00002-of-00002.safetensors" in refusal(folder)


def test_an_index_that_names_a_missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00007-of-00007.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00007-of-00007.safetensors" in refusal(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": ["x"]}}', "\x00"])
def test_an_index_that_is_no_index(folder: Path, text: str) -> None:
    (folder / "model.safetensors.index.json").write_text(text)
    assert "index.json cannot be read" in refusal(folder)


def test_a_tensor_of_the_wrong_shape(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = dict(mx.load(str(file)))  # type: ignore[arg-type]
    weights["model.norm.weight"] = mx.ones((63,))
    mx.save_safetensors(str(file), weights)
    assert "model.norm.weight" in refusal(folder)


@pytest.mark.parametrize("change", ["missing", "additional"])
def test_missing_and_additional_tensors(folder: Path, change: str) -> None:
    file = folder / "model.safetensors"
    weights = dict(mx.load(str(file)))  # type: ignore[arg-type]
    if change == "missing":
        del weights["model.norm.weight"]
    else:
        weights["model.norm.wait"] = mx.ones((64,))
    mx.eval(weights)
    mx.save_safetensors(str(file), weights)
    assert "model.norm.w" in refusal(folder)


# ---- how weights are held ---------------------------------------------------------------------


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="the cast is for the CPU backend")
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_becomes_float32_on_the_cpu(folder: Path, dtype: mx.Dtype) -> None:
    file = folder / "model.safetensors"
    weights = {k: v.astype(dtype) for k, v in dict(mx.load(str(file))).items()}  # type: ignore[arg-type]
    mx.eval(weights)
    mx.save_safetensors(str(file), weights)
    model = load(folder)
    arrays = [v for _, v in tree_flatten(model.servable._model.parameters())]
    assert {a.dtype for a in arrays} == {mx.float32}
    assert model.weight_bytes == sum(a.size * 4 for a in arrays)
    assert model.servable.layers[0].dtype == mx.float32


def test_progress_ends_at_one(good: Path) -> None:
    seen: list[float] = []
    loader.load(good, lambda stage, fraction: seen.append(fraction))
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_a_4_bit_model_is_served_as_mlx_lm_serves_it(family: str, tmp_path: Path) -> None:
    config = tiny_models.family_config(family)
    model = tiny_models.build(config)
    nn.quantize(model, group_size=32, bits=4)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization": {"group_size": 32, "bits": 4}}))
    driver = StepDriver(tmp_path)
    assert any(v.dtype == mx.uint32 for _, v in tree_flatten(driver.model.parameters()))
    prompts = [tuple((7 * i + j * j) % 255 + 1 for j in range(20 + 30 * i)) for i in range(4)]
    for i, prompt in enumerate(prompts):
        driver.add(str(i), prompt, 24)
    outcomes = driver.run()
    for i, prompt in enumerate(prompts):
        assert outcomes[str(i)].tokens == driver.solo(prompt, 24)
