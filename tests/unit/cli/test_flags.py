"""Settings, flags and their documentation are one thing."""

import re
from pathlib import Path

import pytest
import typer
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from mlx_server.cli.flags import configuration_table, describe_settings, with_settings
from mlx_server.core.errors import SettingsError
from mlx_server.core.setting_docs import legal_text
from mlx_server.core.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


def parse(*arguments: str, env: dict[str, str] | None = None) -> Settings:
    """The settings that a command sees."""
    seen: list[Settings] = []

    def command(settings: Settings) -> None:
        seen.append(settings)

    app = typer.Typer()
    app.command()(with_settings(command))
    result = CliRunner().invoke(app, list(arguments), env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_every_setting_has_a_flag() -> None:
    help_text = CliRunner().invoke(_serve_app(), ["--help"], env={"COLUMNS": "300"}).output
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in help_text


def test_settings_table_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert configuration_table() in page, "run 'make docs'"


def test_table_names_default_and_range() -> None:
    rows = {doc.name: doc for doc in describe_settings()}
    assert (rows["port"].default, rows["port"].legal) == ("8642", "0 to 65,535")
    assert (rows["kv_memory"].default, rows["kv_memory"].legal) == ("unset", "at least 1MB")
    assert rows["seed"].legal == "0 to below 2^63"
    assert rows["log_level"].legal == "`debug` or `info` or `warning` or `error`"


def test_every_setting_is_described_with_its_range() -> None:
    help_text = " ".join(CliRunner().invoke(_serve_app(), ["--help"], env={"COLUMNS": "3000"}).output.split())
    for doc in describe_settings():
        assert len(doc.description.split()) > 2 and doc.description.endswith("."), doc.name
        assert doc.legal, f"{doc.name} has no range: give its Field ge and le, or a pattern"
        if not doc.is_switch:
            assert f"Default {doc.default}, legal {doc.legal.replace('`', '')}." in help_text, doc.name


class _Undocumented(BaseSettings):
    seconds: float = 3.0
    count: int | None = None


@pytest.mark.parametrize("name", ["seconds", "count"])
def test_a_number_without_bounds_has_no_range(name: str) -> None:
    assert legal_text(_Undocumented.model_fields[name]) == ""


def test_flags_reach_the_settings() -> None:
    settings = parse("--port", "0", "--kv-memory", "2GB", "--no-prefix-cache", "--step-target-ms", "50")
    assert (settings.port, settings.kv_memory, settings.prefix_cache) == (0, 2 << 30, False)
    assert settings.step_target_ms == 50


def test_flag_wins_over_environment_and_environment_over_default() -> None:
    env = {"MLX_SERVE_PORT": "1111", "MLX_SERVE_MAX_QUEUE": "7"}
    settings = parse("--port", "2222", env=env)
    assert (settings.port, settings.max_queue, settings.max_num_seqs) == (2222, 7, 64)


def test_the_file_is_a_flag(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("max_queue = 5\nport = 3333\n")
    settings = parse("--config", str(tmp_path / "my.toml"), "--port", "2222")
    assert (settings.port, settings.max_queue) == (2222, 5)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--port", "70000"), ("--port", "http"), ("--kv-memory", "lots"), ("--log-level", "loud")],
)
def test_illegal_value_names_key_and_value(flag: str, value: str) -> None:
    key = flag.removeprefix("--").replace("-", "_")
    with pytest.raises(SettingsError, match=re.escape(f"{key} = '{value}'")):
        parse(flag, value)


def _serve_app() -> typer.Typer:
    app = typer.Typer()
    app.command()(with_settings(lambda settings: None))
    return app
