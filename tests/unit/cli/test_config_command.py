"""`mlx-serve config`: what it shows, checks and writes."""

import json
import re
import stat
import tomllib
from pathlib import Path

import pytest

from mlx_server.cli.config import config_template
from mlx_server.cli.flags import describe_settings
from mlx_server.cli.main import main
from mlx_server.core.settings import Settings, check_config_file, load_settings


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "folder" / "config.toml"
    monkeypatch.setenv("MLX_SERVE_CONFIG", str(path))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["config", *arguments])
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def test_init_writes_a_file_that_changes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "init") == (0, "", f"Wrote {file}.\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_settings() == load_settings(Path("/dev/null"))
    code, out, err = run(capsys, "validate")
    assert (code, out, err) == (0, "", f"{file} is legal; it sets nothing.\n")


def test_init_writes_over_nothing_unless_forced(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.parent.mkdir()
    file.write_text("port = 1\n")
    code, _, err = run(capsys, "init")
    assert (code, err) == (1, f"mlx-serve: {file} exists; --force writes over it\n")
    assert file.read_text() == "port = 1\n"
    assert run(capsys, "init", "--force")[0] == 0
    assert file.read_text() == config_template()
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_template_says_everything(tmp_path: Path) -> None:
    text = config_template()
    for doc in describe_settings():
        entry = f"## {doc.description}\n## Default {doc.default}; legal: {doc.legal.replace('`', '')}."
        assert entry in text, doc.name
    lines = re.findall(r"^# (\w+ = .+)$", text, re.MULTILINE)
    path = tmp_path / "config.toml"
    path.write_text("\n".join(lines))
    defaults = {name: field.default for name, field in Settings.model_fields.items() if field.default is not None}
    assert set(tomllib.loads(path.read_text())) == set(defaults)
    assert set(check_config_file(path)) == set(defaults)
    loaded = load_settings(path)
    assert {name: getattr(loaded, name) for name in defaults if name != "keys_file"} == defaults


def test_show_tells_where_each_value_comes_from(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir()
    file.write_text('max_queue = 7\nkv_memory = "3GB"\n')
    monkeypatch.setenv("MLX_SERVE_PORT", "1234")
    code, out, err = run(capsys, "show")
    assert (code, err) == (0, f"file: {file}\n")
    assert re.search(r"^port +1234 +MLX_SERVE_PORT +$", out, re.MULTILINE)
    assert re.search(r"^max_queue +7 +file +$", out, re.MULTILINE)
    assert re.search(r"^kv_memory +3GB +file +$", out, re.MULTILINE)
    assert re.search(r"^max_num_seqs +64 +default +$", out, re.MULTILINE)
    _, out, _ = run(capsys, "show", "--json")
    shown = json.loads(out)
    assert shown["file"] == str(file)
    assert set(shown["settings"]) == set(Settings.model_fields)
    assert shown["settings"]["kv_memory"] == {
        "value": 3 << 30,
        "from": "file",
        "environment": "MLX_SERVE_KV_MEMORY",
    }


def test_validate_names_what_is_wrong(file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("prot = 1\nmax_queue = 0\n")
    code, out, err = run(capsys, "validate", str(other))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "prot = 1" in err and "max_queue = 0" in err and str(other) in err
    code, _, err = run(capsys, "validate")
    assert code == 2
    assert f"'{file}' cannot be read" in err
