"""From the name of a model to a local folder."""

from __future__ import annotations

import re
from pathlib import Path

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.settings import DEMO_MODEL
from mlx_server.daemon.aliases import expand_alias

DEMO_FOLDER = Path(__file__).resolve().parent.parent / "demo_model"

DOWNLOAD_PATTERNS = (
    "*.json",
    "model*.safetensors",
    "tokenizer.model",
    "*.tiktoken",
    "tiktoken.model",
    "*.txt",
    "*.jsonl",
    "*.jinja",
)
"""What mlx-lm downloads, but for code: a model is data."""

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_model(name: str) -> Path:
    """The folder of 'demo', of an alias, of a local path, or of a Hugging Face repository, downloaded if need be.

    Blocks, possibly for minutes. Raises `ModelLoadError` with a reason for a person, and `SettingsError` for
    aliases that cannot be read.
    """
    name = expand_alias(name)
    if name == DEMO_MODEL:
        return _checked(DEMO_FOLDER, "the embedded demonstration model")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _checked(folder.resolve(), f"the folder {name}")
    if folder.exists():
        raise ModelLoadError(f"{name} is a file; the folder that holds config.json is needed")
    if not is_repository_id(name):
        raise ModelLoadError(f"there is no folder {name}, and it is not a Hugging Face repository id (owner/name)")
    return download(name)


def is_repository_id(name: str) -> bool:
    """Whether `name` can be one on the hub; never a path."""
    return _REPO_ID.fullmatch(name) is not None and ".." not in name


def download(repo_id: str) -> Path:
    """The folder of a Hugging Face repository, downloaded as far as it is not there. Raises `ModelLoadError`."""
    return _checked(_snapshot(repo_id), f"the repository {repo_id}")


def looks_like_model(folder: Path) -> bool:
    """Whether the folder holds a configuration and weights."""
    return (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))


def _checked(folder: Path, what: str) -> Path:
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{what} has no config.json, so it is not a model ({folder})")
    if not any(folder.glob("model*.safetensors")):
        raise ModelLoadError(f"{what} has no model*.safetensors weights ({folder})")
    return folder


def _snapshot(repo_id: str) -> Path:
    import httpx2
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(repo_id, allow_patterns=list(DOWNLOAD_PATTERNS)))
    except GatedRepoError as error:
        reason = "is gated: accept its terms on huggingface.co, then log in with 'hf auth login'"
        raise ModelLoadError(f"the repository {repo_id} {reason}") from error
    except RepositoryNotFoundError as error:
        reason = "does not exist on huggingface.co, or is private (then log in with 'hf auth login')"
        raise ModelLoadError(f"the repository {repo_id} {reason}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        reason = "is not on this machine, and huggingface.co cannot be reached"
        raise ModelLoadError(f"the repository {repo_id} {reason}; a local folder works offline") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelLoadError(f"the repository {repo_id} cannot be downloaded: {error}") from error
    except httpx2.HTTPError as error:
        reason = f"the connection was lost: {str(error) or type(error).__name__}; what came is kept for the next try"
        raise ModelLoadError(f"the repository {repo_id} cannot be downloaded: {reason}") from error
