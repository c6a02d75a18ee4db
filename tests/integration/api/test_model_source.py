"""From model names to local folders; the hub is a fake."""

from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors

from mlx_server.core.errors import ModelLoadError
from mlx_server.daemon.model_source import DEMO_FOLDER, DOWNLOAD_PATTERNS, resolve_model
from tests.fakes import small_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_tokenizer.model_folder(tmp_path / "model")


def test_the_demo_is_embedded() -> None:
    assert resolve_model("demo") == DEMO_FOLDER


def test_a_local_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(folder)) == folder.resolve()
    monkeypatch.chdir(folder.parent)
    assert resolve_model("./model") == folder.resolve()


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_an_incomplete_folder_says_what_is_missing(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelLoadError, match="safetensors" if "safe" in missing else r"config\.json"):
        resolve_model(str(folder))


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/no-such-model", "a/b/c", "../x/y", "a b", "x/.."])
def test_neither_a_folder_nor_an_id(name: str) -> None:
    with pytest.raises(ModelLoadError, match="no folder"):
        resolve_model(name)


def test_a_file_is_not_a_model(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="is a file"):
        resolve_model(str(folder / "config.json"))


def test_a_repository_is_downloaded_without_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def snapshot(repo_id: str, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve_model("org/name-4bit") == folder
    assert asked == [("org/name-4bit", list(DOWNLOAD_PATTERNS))]
    assert not any(".py" in pattern for pattern in DOWNLOAD_PATTERNS)


def http_error(kind: type[Exception], status: int) -> Exception:
    response = httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co"))
    return kind("boom", response=response)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (http_error(errors.GatedRepoError, 403), "gated"),
        (http_error(errors.RepositoryNotFoundError, 401), "does not exist"),
        (errors.LocalEntryNotFoundError("boom"), "cannot be reached"),
        (errors.OfflineModeIsEnabled("boom"), "cannot be reached"),
        (http_error(errors.HfHubHTTPError, 500), "cannot be downloaded"),
        (OSError("disk full"), "disk full"),
    ],
)
def test_a_failed_download_gives_a_reason(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(repo_id: str, allow_patterns: list[str]) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ModelLoadError, match=words):
        resolve_model("org/name")
