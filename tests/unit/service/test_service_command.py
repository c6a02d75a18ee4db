"""`mlx-serve service` with launchd: what goes into the plist, what is shown, and the exit codes."""

import plistlib
from pathlib import Path

import pytest

from mlx_server.cli import service as command
from mlx_server.cli.main import main
from mlx_server.services.service import launchd
from mlx_server.services.service.launchd import LaunchAgent
from tests.fakes.service_manager import State


@pytest.fixture
def agent(tmp_path: Path, fake: State, monkeypatch: pytest.MonkeyPatch) -> LaunchAgent:
    (tmp_path / "c.toml").touch()
    monkeypatch.setenv("MLX_SERVE_CONFIG", str(tmp_path / "c.toml"))
    agent = LaunchAgent(tmp_path / "home", 501)
    monkeypatch.setattr(command, "service_manager", lambda: agent)
    monkeypatch.setattr(launchd, "_POLL_S", 0.0)
    return agent


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["service", *arguments])
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def test_from_install_to_uninstall(
    agent: LaunchAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    code, out, err = run(capsys, "install", "--port", str(unused_tcp_port), "--no-prefix-cache", "--drain-s", "40")
    assert (code, out) == (0, ""), err
    plist = plistlib.loads(agent.definition.read_bytes())
    assert plist["ProgramArguments"][1:] == [
        "serve",
        f"--config={tmp_path}/c.toml",
        f"--port={unused_tcp_port}",
        "--drain-s=40",
        "--no-prefix-cache",
        f"--log-file={agent.default_log}",
    ]
    assert plist["ExitTimeOut"] == 55
    assert plist["StandardErrorPath"] == str(agent.default_log)

    code, out, _ = run(capsys, "status")
    assert code == 0
    assert f"runs under launchd (gui/501/{launchd.LABEL})" in out
    assert f"nothing answers at http://127.0.0.1:{unused_tcp_port}" in out
    assert str(agent.default_log) in out

    assert run(capsys, "stop")[0] == 0
    assert run(capsys, "status")[0] == command.EXIT_STOPPED
    assert run(capsys, "start")[0] == 0
    assert run(capsys, "restart")[0] == 0
    code, out, _ = run(capsys, "status")
    assert code == 0
    assert "last exit" in out and "status 1" in out
    assert run(capsys, "uninstall")[0] == 0
    assert run(capsys, "status")[0] == command.EXIT_NOT_INSTALLED
    assert run(capsys, "uninstall")[2] == "There is no service.\n"


def test_another_program_on_the_port(
    agent: LaunchAgent, fake: State, capsys: pytest.CaptureFixture[str], tcp_neighbour: int
) -> None:
    code, _, err = run(capsys, "install", "--port", str(tcp_neighbour))
    assert code == 1
    assert f"port {tcp_neighbour} of 127.0.0.1 is taken by another program" in err
    assert err.count("\n") == 1
    assert fake.calls() == []


def test_status_names_settings_that_have_become_illegal(
    agent: LaunchAgent, tmp_path: Path, fake: State, capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    assert run(capsys, "install", "--port", str(unused_tcp_port))[0] == 0
    (tmp_path / "c.toml").write_text("max_queue = 0\n")
    fake.change(pid=0)
    code, out, _ = run(capsys, "status")
    assert code == command.EXIT_STOPPED
    assert "settings    max_queue = 0" in out
    assert "restarts" not in out and str(agent.definition) in out


@pytest.mark.parametrize("verb", ["start", "restart", "logs"])
def test_what_is_not_installed(agent: LaunchAgent, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    code, out, err = run(capsys, verb)
    assert (code, out) == (1, "")
    assert "the service is not installed" in err
