"""`mlx-serve plan`: its table, its verdict, its exit code."""

import json
from pathlib import Path

import pytest

from mlx_server.cli import plan as plan_module
from mlx_server.cli.main import main
from mlx_server.cli.plan import this_device
from mlx_server.services.sizing.estimate import Device


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["plan", *arguments])
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that this machine is said to have."""
    limit = [8 << 30]
    real = this_device()
    names = {name: getattr(real, name) for name in Device.__slots__}
    monkeypatch.setattr(plan_module, "this_device", lambda: Device(**{**names, "limit_bytes": limit[0]}))
    return limit


def test_what_fits(capsys: pytest.CaptureFixture[str], machine: list[int]) -> None:
    code, out, _ = run(capsys, "--context", "4k", "--concurrency", "2", "--kv-memory", "64MB")
    assert code == 0
    for part in ("weights", "KV of a token", "KV of a request", "KV pool", "kept gathers", "headroom", "8.00 GB"):
        assert part in out
    assert "4,096 tokens in whole blocks of 32" in out
    assert "It fits: 2 at a time with 4,096 tokens each; the longest context" in out


def test_the_pool_that_is_missing_is_a_command(capsys: pytest.CaptureFixture[str], machine: list[int]) -> None:
    _, out, _ = run(capsys, "--context", "8k", "--concurrency", "4", "--kv-blocks", "10")
    size = json.loads(run(capsys, "--context", "8k", "--concurrency", "4", "--json")[1])["bytes"]["pool"] >> 20
    assert f"mlx-serve serve --model demo --kv-memory {size}MB --max-num-seqs 4" in out
    _, out, _ = run(capsys, "--context", "8k", "--concurrency", "4", "--kv-memory", f"{size}MB")
    assert "mlx-serve serve" not in out


def test_fewer_fit(capsys: pytest.CaptureFixture[str], machine: list[int]) -> None:
    code, out, _ = run(capsys, "--context", "8k", "--concurrency", "1000", "--json")
    found = json.loads(out)
    assert (code, found["fits"]) == (0, False)
    assert 1 < found["fitting_concurrency"] < 1000 and 0 < found["fitting_context"] < 8192
    assert f"it fits with {found['fitting_concurrency']} at a time" in found["verdict"]


def test_nothing_fits(capsys: pytest.CaptureFixture[str], machine: list[int]) -> None:
    machine[0] = 1 << 20
    code, out, _ = run(capsys, "--context", "8k")
    assert code == 1
    assert "It does not fit: not even one request of 8,192 tokens does, nor does any shorter context." in out


@pytest.mark.parametrize("context", ["0", "-1", "k", "32x", "99999999999"])
def test_a_context_that_is_no_number(capsys: pytest.CaptureFixture[str], context: str) -> None:
    code, _, err = run(capsys, f"--context={context}")
    assert code == 2
    assert "such as 32k" in " ".join(err.split())


def test_the_usual_context_is_cut_to_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "--json")[1])["bytes"]["context"] == 8192
    assert json.loads(run(capsys, "--json", "--max-model-len", "1000")[1])["bytes"]["context"] == 1000
    code, _, err = run(capsys, "--context", "2k", "--max-model-len", "1000")
    assert (code, err) == (1, "mlx-serve: max_model_len allows 1,000 tokens of context, fewer than 2,048\n")


def test_more_context_than_the_model_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--context", "32k")[::2] == (
        1,
        "mlx-serve: demo knows 8,192 tokens of context, fewer than 32,768\n",
    )


def test_a_model_whose_files_do_not_tell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests import tiny_models

    folder = tiny_models.save(tiny_models.family_config("llama"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "kv_lora_rank": 16}))
    code, out, err = run(capsys, "--model", str(folder), "--context", "1k")
    assert (code, out) == (1, "")
    assert "multi-head latent attention" in err
