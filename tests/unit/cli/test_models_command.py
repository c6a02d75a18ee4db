"""`mlx-serve models` on a Hugging Face cache in a folder of the test."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_server.cli.main import main
from mlx_server.core.errors import ModelLoadError
from mlx_server.core.settings import Settings
from mlx_server.daemon.aliases import aliases_path
from mlx_server.daemon.model_facts import REFUSED_TYPES, TESTED_TYPES, read_facts
from mlx_server.daemon.model_source import resolve_model
from mlx_server.daemon.server_thread import ServerThread
from tests import tiny_models
from tests.fakes.scripted_engine import ScriptedEngine

COMMIT = "0" * 40
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MLX_SERVE_PORT", str(unused_tcp_port))  # nobody answers there


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights file of 64 x 32 numbers in one matrix and 32 in one vector."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    mx.save_safetensors(
        str(path),
        {"layer.weight": mx.zeros((64, 32), dtype=mx.bfloat16), "norm.weight": mx.zeros((32,), dtype=mx.bfloat16)},
    )
    return path


def add(cache: Path, weights: Path, repo_id: str, commit: str = COMMIT, **config: object) -> Path:
    """A repository as the hub's client lays it out; its snapshot's folder."""
    repo = cache / ("models--" + repo_id.replace("/", "--"))
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for folder in ("blobs", "refs"):
        (repo / folder).mkdir(exist_ok=True)
    (repo / "refs" / "main").write_text(commit)
    about = json.dumps({"model_type": "qwen3", "max_position_embeddings": 4096, **config})
    for name, data in (("config.json", about.encode()), ("model.safetensors", weights.read_bytes())):
        blob = repo / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def models(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            main(["models", *arguments])
        out, err = capsys.readouterr()
        return int(exit_info.value.code or 0), out, " ".join(err.replace("│", " ").split())

    return models


@pytest.fixture
def serving(cache: Path, weights: Path) -> Iterator[tuple[str, Path]]:
    """A daemon that serves org/one of the cache, by name; its URL and the snapshot."""
    snapshot = add(cache, weights, "org/one")
    with ServerThread(Settings(model="demo", served_model_name="org/one"), lambda *_: ScriptedEngine()) as server:
        yield server.url, snapshot


def test_list_without_a_cache(run: Run, cache: Path) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["name", "demo"]


def test_list(run: Run, serving: tuple[str, Path], cache: Path, weights: Path) -> None:
    add(cache, weights, "org/two")
    (cache / "models--org--tokenizer-only" / "snapshots" / COMMIT).mkdir(parents=True)
    (cache / "datasets--org--data" / "snapshots" / COMMIT).mkdir(parents=True)
    run("alias", "first", "org/one")
    code, out, err = run("list", "--url", serving[0])
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()}
    assert (code, err) == (0, "")
    assert list(rows) == ["name", "demo", "org/one", "org/two", "first"]
    assert rows["org/one"].endswith("MB served")
    assert rows["org/two"].endswith("MB")
    assert rows["first"] == "alias of org/one"


def test_show(run: Run, cache: Path, weights: Path) -> None:
    snapshot = add(cache, weights, "org/one")
    run("alias", "first", "org/one")
    for name in ("org/one", "first", str(snapshot)):
        code, out, _ = run("show", name)
        rows = dict(line.split("  ", 1) for line in out.splitlines())
        assert code == 0
        assert {key: value.strip() for key, value in rows.items()} == {
            "folder": str(snapshot),
            "type": "qwen3",
            "parameters": "2,080",
            "context": "4,096 tokens",
            "quantization": "none (BF16)",
            "weights": "0.0 MB",
            "served exactly": "yes: this family is held by tests; the probe looks again at load",
        }


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_parameters_of_a_quantized_model_are_those_before(tmp_path: Path, bits: int) -> None:
    packed, scales, biases = mx.quantize(mx.zeros((64, 128)), group_size=64, bits=bits)
    tensors = {"a.weight": packed, "a.scales": scales, "a.biases": biases, "norm.weight": mx.zeros((128,))}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    config = {"model_type": "gemma2", "quantization": {"group_size": 64, "bits": 4, "a": {"bits": bits}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = read_facts(tmp_path)
    assert facts.parameters == 64 * 128 + 128
    assert facts.quantization == "4 bits, groups of 64"
    assert facts.served.startswith("no: it computes attention itself")


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"model_type": 3}'])
def test_a_damaged_config_is_one_error(tmp_path: Path, weights: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "model.safetensors").write_bytes(weights.read_bytes()[:50])
    with pytest.raises(ModelLoadError):
        read_facts(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_facts(tmp_path)


def test_tested_types_are_those_of_the_tests() -> None:
    assert frozenset(tiny_models.FAMILIES) == TESTED_TYPES
    page = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("|")]
    for name in TESTED_TYPES:
        assert any(name in row and "| yes |" in row for row in rows), name
    for name in REFUSED_TYPES:
        assert any(name in row and "| refused" in row for row in rows), name


def test_rm(run: Run, cache: Path, weights: Path) -> None:
    """The other repository has the same commit, as a duplicate on the hub has, and stays."""
    add(cache, weights, "org/one")
    other = add(cache, weights, "org/two")
    code, out, err = run("rm", "org/one")
    assert (code, out) == (2, "") and "--yes" in err
    assert run("rm", "org/one", "--yes")[0] == 0
    assert not (cache / "models--org--one").exists()
    assert (other / "model.safetensors").exists()
    code, _, err = run("rm", "org/one", "--yes")
    assert code == 2 and "there is no 'org/one'" in err


def test_rm_never_takes_what_is_served(run: Run, serving: tuple[str, Path]) -> None:
    url, snapshot = serving
    code, out, err = run("rm", "org/one", "--yes", "--url", url)
    assert (code, out) == (1, "") and f"served by the daemon at {url}" in err
    assert (snapshot / "model.safetensors").exists()


def test_rm_knows_a_served_model_by_its_other_names(run: Run, cache: Path, weights: Path) -> None:
    """Clients see it as 'mine'; it was started under its alias."""
    snapshot = add(cache, weights, "org/one")
    run("alias", "first", "org/one")
    settings = Settings(model="first", served_model_name="mine")
    with ServerThread(settings, lambda *_: ScriptedEngine()) as server:
        code, _, err = run("rm", "org/one", "--yes", "--url", server.url)
    assert code == 1 and "served by the daemon" in err
    assert (snapshot / "model.safetensors").exists()


@pytest.mark.parametrize(
    "name", ["demo", "../hub/models--org--one", "..", ".", "", "/", "org/../org/one", "models--org--one", "org--one"]
)
def test_rm_takes_names_and_no_paths(run: Run, cache: Path, weights: Path, name: str) -> None:
    snapshot = add(cache, weights, "org/one")
    for path in (name, str(snapshot), str(cache)):
        code, _, err = run("rm", "--yes", "--", path)
        assert code == 2 and "Hugging Face cache" in err
    assert (snapshot / "config.json").exists()


def test_rm_follows_no_link_out_of_the_cache(run: Run, cache: Path, weights: Path, tmp_path: Path) -> None:
    snapshot = add(tmp_path / "elsewhere", weights, "org/one")
    cache.mkdir()
    (cache / "models--org--one").symlink_to(tmp_path / "elsewhere" / "models--org--one")
    assert run("rm", "org/one", "--yes")[0] == 1
    assert (snapshot / "model.safetensors").exists()


def test_an_alias_is_a_model_name(run: Run, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(weights.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert run("alias", "fast", "./mine") == (0, "", "")
    monkeypatch.chdir("/")
    assert resolve_model("fast") == folder
    assert run("alias", "fast", "org/other")[0] == 0
    assert json.loads(aliases_path().read_text()) == {"fast": "org/other"}
    code, _, err = run("rm", "fast", "--yes")
    assert code == 2 and "is an alias" in err
    assert run("alias", "fast", "--remove") == (0, "", "")
    assert run("alias", "fast", "--remove")[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "org/x"],
        ["default", "org/x"],
        ["a/b", "org/x"],
        ["../x", "org/x"],
        ["-x", "org/x"],
        ["a" * 65, "org/x"],
        ["", "org/x"],
        ["x", "x"],
        ["x", "./nowhere"],
        ["x", "../../etc"],
        ["x", "org/../../etc"],
        ["x"],
        ["x", "org/y", "--remove"],
    ],
)
def test_aliases_that_are_not_legal(run: Run, arguments: list[str]) -> None:
    flags = [word for word in arguments if word == "--remove"]
    words = [word for word in arguments if word != "--remove"]
    code, out, err = run("alias", *flags, "--", *words)
    assert (code, out) == (2, "") and err
    assert not aliases_path().exists()


def test_no_alias_of_an_alias(run: Run) -> None:
    run("alias", "one", "org/x")
    code, _, err = run("alias", "two", "one")
    assert code == 2 and "must be a model, not an alias" in err


@pytest.mark.parametrize("text", ["{", "[]", '{"a/b": "x"}', '{"a": 1}', '{"a": ""}'])
def test_damaged_aliases_are_one_line(run: Run, cache: Path, text: str) -> None:
    aliases_path().parent.mkdir(parents=True)
    aliases_path().write_text(text)
    for command in (["list"], ["alias", "x", "org/x"], ["show", "x"]):
        code, out, err = run(*command)
        assert (code, out) == (2, "") and "correct or remove the file" in err
    assert aliases_path().read_text() == text


@pytest.mark.parametrize("name", ["demo", "./x", "/etc", "../x", "a/b/c", "~", ""])
def test_pull_takes_repositories_only(run: Run, name: str) -> None:
    code, out, err = run("pull", "--", name)
    assert (code, out) == (2, "") and ("not a Hugging Face repository" in err or "embedded" in err)
