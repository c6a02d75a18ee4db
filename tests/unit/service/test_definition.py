"""What the service runs: the program, its flags, and no more of the environment than it needs."""

import os
import sys
from pathlib import Path

import pytest

from mlx_server.core.settings import Settings, load_settings
from mlx_server.services.service.definition import ServiceError, find_program, given_flags, make_spec

PROGRAM = Path("/opt/mlx/bin/mlx-serve")


def test_flags_come_back_as_they_were_given() -> None:
    flags: dict[str, str | bool] = {
        "port": "9000",
        "prefix_cache": False,
        "tracing": True,
        "served_model_name": "a=b --c",
    }
    spec = make_spec(PROGRAM, load_settings(**flags), flags, Path("/etc/mlx.toml"), {"HOME": "/home/a"}, None)
    assert spec.invocation.command[:2] == (str(PROGRAM), "serve")
    assert given_flags(spec.invocation.command) == (Path("/etc/mlx.toml"), flags)
    assert spec.log_file is None


def test_the_environment_holds_settings_and_places_only() -> None:
    environ = {
        "HOME": "/home/a",
        "PATH": "/home/a/odd:/bin",
        "MLX_SERVE_MAX_QUEUE": "7",
        "MLX_SERVE_API_KEY": "mlxs-secret",
        "HF_HOME": "/big/hf",
        "HF_TOKEN": "hf_secret",
        "SSH_AUTH_SOCK": "/tmp/agent",
    }
    found = make_spec(PROGRAM, Settings(), {}, None, environ, None).invocation.environment
    assert found.keys() == {"HOME", "PATH", "MLX_SERVE_MAX_QUEUE", "HF_HOME"}
    assert "odd" not in found["PATH"]


def test_paths_do_not_depend_on_the_folder_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my model").mkdir()
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": "/home/a", "MLX_SERVE_KEYS_FILE": "keys.json"}
    flags: dict[str, str | bool] = {"model": "my model", "log_file": "log.txt"}
    spec = make_spec(
        PROGRAM, Settings(log_file=Path("log.txt")), flags, Path("own.toml"), environ, Path("/default.log")
    )
    assert spec.invocation.command[2:] == (
        f"--config={tmp_path}/own.toml",
        f"--model={tmp_path}/my model",
        f"--log-file={tmp_path}/log.txt",
    )
    assert spec.invocation.environment["MLX_SERVE_KEYS_FILE"] == str(tmp_path / "keys.json")
    assert spec.log_file == tmp_path / "log.txt"


def test_a_repository_is_not_taken_for_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = make_spec(PROGRAM, Settings(), {"model": "org/model"}, None, {"HOME": "/"}, None)
    assert spec.invocation.command[2:] == ("--model=org/model",)


def test_it_is_killed_no_earlier_than_the_drain_ends() -> None:
    for drain_s in (0.0, 15.0, 599.5):
        assert make_spec(PROGRAM, Settings(drain_s=drain_s), {}, None, {"HOME": "/"}, None).stop_s >= drain_s + 10


class TestTheProgram:
    @pytest.fixture
    def own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        program = tmp_path / "versions" / "1.0" / "bin" / "mlx-serve"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        monkeypatch.setattr(sys, "prefix", str(program.parent.parent))
        monkeypatch.setenv("PATH", str(tmp_path / "on path"))
        (tmp_path / "on path").mkdir()
        return program

    def test_of_this_environment(self, own: Path) -> None:
        assert find_program() == own

    def test_a_link_on_path_to_it_is_kept(self, own: Path, tmp_path: Path) -> None:
        link = tmp_path / "on path" / "mlx-serve"
        link.symlink_to(own)
        assert find_program() == link

    def test_another_one_on_path_is_not_ours(self, own: Path, tmp_path: Path) -> None:
        (tmp_path / "on path" / "mlx-serve").touch(mode=0o755)
        assert find_program() == own

    def test_none_at_all(self, own: Path) -> None:
        own.unlink()
        with pytest.raises(ServiceError, match="pipx install"):
            find_program()


def test_this_installation_has_its_program() -> None:
    assert os.access(find_program(), os.X_OK)
