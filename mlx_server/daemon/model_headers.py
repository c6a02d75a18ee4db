"""A model's config.json and the headers of its weights: from a folder, the cache, or the hub, without its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.settings import DEMO_MODEL
from mlx_server.daemon.aliases import expand_alias
from mlx_server.daemon.model_source import is_repository_id, looks_like_model, resolve_model

Headers = tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...]]]]
"""config.json, and of each tensor its dtype and shape."""


def read_headers(name: str) -> Headers:
    """Of a model as `resolve_model` knows it; of one on the hub only some kilobytes are read.

    Blocks, possibly for seconds. Raises `ModelLoadError` with a reason for a person, and what `resolve_model` raises.
    """
    name = expand_alias(name)
    if name == DEMO_MODEL or Path(name).expanduser().exists() or not is_repository_id(name):
        return _of_folder(resolve_model(name))
    cached = _cached(name)
    return _of_folder(cached) if cached is not None else _of_hub(name)


def _cached(repo_id: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo_id, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if looks_like_model(folder) and not _lacks_a_shard(folder) else None


def _lacks_a_shard(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return False
    return any(not (folder / file).is_file() for file in set(json.loads(index.read_text())["weight_map"].values()))


def _of_folder(folder: Path) -> Headers:
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    try:
        config = json.loads((folder / "config.json").read_text())
        for file in sorted(folder.glob("model*.safetensors")):
            with safe_open(file, framework="numpy") as weights:
                slices = {key: weights.get_slice(key) for key in weights.keys()}  # noqa: SIM118 - not a mapping
                tensors |= {key: (part.get_dtype(), tuple(part.get_shape())) for key, part in slices.items()}
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"the files in {folder} cannot be read: {error}") from error
    return _checked(config, str(folder)), tensors


def _of_hub(repo_id: str) -> Headers:
    import httpx2
    from huggingface_hub import get_safetensors_metadata, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        NotASafetensorsRepoError,
        RepositoryNotFoundError,
        SafetensorsParsingError,
    )

    try:
        config = json.loads(Path(hf_hub_download(repo_id, "config.json")).read_text())
        metadata = get_safetensors_metadata(repo_id)
    except GatedRepoError as error:
        reason = "is gated: accept its terms on huggingface.co, then log in with 'hf auth login'"
        raise ModelLoadError(f"the repository {repo_id} {reason}") from error
    except RepositoryNotFoundError as error:
        reason = "does not exist on huggingface.co, or is private (then log in with 'hf auth login')"
        raise ModelLoadError(f"the repository {repo_id} {reason}") from error
    except LocalEntryNotFoundError as error:
        reason = "is not on this machine, and huggingface.co cannot be reached; a local folder works offline"
        raise ModelLoadError(f"the repository {repo_id} {reason}") from error
    except (
        HfHubHTTPError,
        httpx2.HTTPError,
        NotASafetensorsRepoError,
        SafetensorsParsingError,
        OSError,
        ValueError,
    ) as error:
        raise ModelLoadError(f"the repository {repo_id} cannot be read: {' '.join(str(error).split())}") from error
    tensors = {
        key: (str(about.dtype), tuple(about.shape))
        for file in metadata.files_metadata.values()
        for key, about in file.tensors.items()
    }
    return _checked(config, f"the repository {repo_id}"), tensors


def _checked(config: Any, what: str) -> dict[str, Any]:
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelLoadError(f"config.json of {what} names no model_type")
    return config
