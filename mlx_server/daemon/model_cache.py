"""The models in the Hugging Face cache: which there are, and taking one away."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_server.core.errors import MlxServeError
from mlx_server.daemon.model_source import looks_like_model

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, HFCacheInfo


class ModelCacheError(MlxServeError):
    """The cache cannot be read, or a model in it cannot be removed."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A repository in the cache. folder: of the revision that is served. size_bytes: of all its revisions."""

    repo_id: str
    folder: Path
    size_bytes: int


def cached_models() -> list[CachedModel]:
    """By name. Repositories without config.json or model*.safetensors are none. Raises `ModelCacheError`."""
    found = []
    for repo in _scan_models():
        revision = _served_revision(repo)
        if revision is not None and looks_like_model(revision.snapshot_path):
            found.append(CachedModel(repo.repo_id, revision.snapshot_path, repo.size_on_disk))
    return sorted(found, key=lambda model: model.repo_id.lower())


def find_cached(repo_id: str) -> CachedModel | None:
    """The model of exactly this name: the name is compared, and never becomes part of a path."""
    return next((model for model in cached_models() if model.repo_id == repo_id), None)


def remove_cached(model: CachedModel) -> None:
    """Delete all its revisions. Raises `ModelCacheError` when something of it is left."""
    cache = _scan()
    repos = [repo for repo in _models_of(cache) if repo.repo_id == model.repo_id]
    if cache is None or not repos:
        raise ModelCacheError(f"{model.repo_id} is no longer in the cache")
    path = repos[0].repo_path
    if path.is_symlink():
        raise ModelCacheError(f"{path} is a link to {path.resolve()}, outside of the cache; remove it there")
    # Deletion is by commit, and a repository that was duplicated on the hub shares its commits with the copy.
    alone = dataclasses.replace(cache, repos=frozenset(repos))
    alone.delete_revisions(*(revision.commit_hash for revision in repos[0].revisions)).execute()
    if path.exists():
        raise ModelCacheError(f"{path} cannot be removed entirely; look at its permissions")


def _scan() -> HFCacheInfo | None:
    """None where there is no cache yet."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None
    except (OSError, ValueError) as error:
        raise ModelCacheError(f"the Hugging Face cache cannot be read: {error}") from error


def _scan_models() -> list[CachedRepoInfo]:
    return _models_of(_scan())


def _models_of(cache: HFCacheInfo | None) -> list[CachedRepoInfo]:
    return [repo for repo in cache.repos if repo.repo_type == "model"] if cache is not None else []


def _served_revision(repo: CachedRepoInfo) -> CachedRevisionInfo | None:
    """What a download of the name would give: 'main', else the newest."""
    newest = max(repo.revisions, key=lambda revision: revision.last_modified, default=None)
    return repo.refs.get("main", newest)
