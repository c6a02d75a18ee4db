"""Loads a model from a local folder, on the generation thread. No code of the folder is ever executed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

# mlx_lm takes names from it; this waits where another thread is importing it, as the tokenizer's does.
import transformers  # noqa: F401
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import load_config, load_model
from safetensors import SafetensorError, safe_open

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.model_config import context_length, text_config
from mlx_server.runner import OPENBLAS
from mlx_server.runner.openblas import warn_if_missing
from mlx_server.runner.servable import ServableModel

Progress = Callable[[str, float], None]
"""Called with (stage, fraction in [0, 1])."""

_EVAL_GROUP = 32  # arrays evaluated between two progress reports


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """weight_bytes: memory of all parameters, as they are held. config: the folder's config.json."""

    servable: ServableModel
    config: dict[str, Any]
    eos_token_ids: tuple[int, ...]
    context_length: int
    weight_bytes: int


def load(path: Path, progress: Progress) -> LoadedModel:
    """Raises `ModelLoadError` with a reason for a person; never executes a `model_file` or remote code."""
    warn_if_missing(OPENBLAS)
    config = _read_config(path)
    _check_weights(path)
    progress("reading weights", 0.0)
    model = _build(path, config)
    if mx.default_device() == mx.cpu:
        # bfloat16 and float16 products are 10 to 30 times slower than float32 ones on this backend.
        model.update(tree_map(_to_float32, model.parameters()))
    weight_bytes = _evaluate(model, progress)
    try:
        servable = ServableModel(model)
    except ModelLoadError:
        raise
    except Exception as error:  # the model's own code runs here for the first time
        raise ModelLoadError(f"a single token does not pass through the model: {_brief(error)}") from error
    return LoadedModel(servable, config, _eos_token_ids(path, config), context_length(config), weight_bytes)


def _read_config(path: Path) -> dict[str, Any]:
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"{path} has no config.json, so it is not a model folder")
    try:
        config = load_config(path)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelLoadError(f"config.json or generation_config.json cannot be read: {_brief(error)}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelLoadError("config.json names no model_type")
    if config.get("model_file") is not None:
        raise ModelLoadError(
            f"config.json asks to run code of its own ({config['model_file']!r}); this server never executes "
            "code that comes with a model"
        )
    return config


def _check_weights(path: Path) -> None:
    """Validate every file's header, offsets and length before MLX maps it."""
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise ModelLoadError(f"{path} has no model*.safetensors")
    for file in files:
        try:
            with safe_open(file, framework="numpy") as weights:
                weights.keys()
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelLoadError(f"{file.name} is malformed or truncated: {_brief(error)}") from error
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            named = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelLoadError(f"{index.name} cannot be read: {_brief(error)}") from error
        missing = sorted(named - {file.name for file in files})
        if missing:
            raise ModelLoadError(f"weights files are missing: {', '.join(missing[:5])}")


def _build(path: Path, config: dict[str, Any]) -> Module:
    try:
        model: Module = load_model(path, lazy=True, trust_remote_code=False)[0]
    except SystemExit as error:  # one of mlx-lm's model files exits when an optional package is missing
        raise ModelLoadError(f"mlx-lm cannot load model type {config['model_type']!r} here") from error
    except Exception as error:  # anything a foreign config or weights file may provoke in mlx-lm
        raise ModelLoadError(f"mlx-lm cannot load it: {_brief(error)}") from error
    return model


def _evaluate(model: Module, progress: Progress) -> int:
    """Bring every parameter into memory on this thread, private arrays (RoPE tables) included."""
    flat: Any = tree_flatten(model.parameters())
    arrays: list[mx.array] = [value for _, value in flat]
    for i in range(0, len(arrays), _EVAL_GROUP):
        mx.eval(arrays[i : i + _EVAL_GROUP])
        progress("reading weights", min(i + _EVAL_GROUP, len(arrays)) / len(arrays))
    for module in model.modules():
        mx.eval([value for value in vars(module).values() if isinstance(value, mx.array)])
        mx.eval([value for value in module.values() if isinstance(value, mx.array)])
    return sum(array.nbytes for array in arrays)


def _to_float32(array: mx.array) -> mx.array:
    return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array


def _eos_token_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Ids from config.json and generation_config.json, and the tokenizer's own eos token."""
    found = config.get("eos_token_id")
    if found is None:
        found = text_config(config).get("eos_token_id")
    ids = {i for i in (found if isinstance(found, list) else [found]) if isinstance(i, int)}
    return tuple(sorted(ids | _tokenizer_eos_ids(path)))


def _tokenizer_eos_ids(path: Path) -> set[int]:
    """The id of the tokenizer's eos token; empty where its files do not say. They are checked elsewhere."""
    try:
        eos = json.loads((path / "tokenizer_config.json").read_text())["eos_token"]
        added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
        content = eos["content"] if isinstance(eos, dict) else eos
        ids = {t["id"] for t in added if content is not None and t["content"] == content}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()
    return {i for i in ids if isinstance(i, int)}


def _brief(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."
