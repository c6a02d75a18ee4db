"""The unit says what systemd documents, and systemctl is called as it should be."""

import configparser
import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from mlx_server.services.service.definition import Invocation, ServiceError, ServiceSpec
from mlx_server.services.service.systemd import UNIT, UserUnit, render_unit
from tests.fakes.service_manager import State

# Of systemd.unit(5), systemd.service(5), systemd.exec(5) and systemd.kill(5), systemd 252.
DOCUMENTED = {
    "Unit": {"Description", "StartLimitIntervalSec", "StartLimitBurst"},
    "Service": {
        "Type",
        "ExecStart",
        "Environment",
        "WorkingDirectory",
        "Restart",
        "RestartSec",
        "RestartPreventExitStatus",
        "KillMode",
        "TimeoutStopSec",
        "LimitNOFILE",
    },
    "Install": {"WantedBy"},
}


def test_the_unit_is_what_systemd_documents(spec: ServiceSpec) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(render_unit(spec).decode())
    assert {name: set(unit[name]) for name in unit.sections()} == DOCUMENTED
    assert unit["Service"]["TimeoutStopSec"] == "30"
    assert unit["Service"]["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_itself_accepts_the_unit(spec: ServiceSpec, tmp_path: Path) -> None:
    program = Path(spec.invocation.command[0])
    program.parent.mkdir(parents=True)
    program.symlink_to("/bin/true")
    right = render_unit(spec)
    assert complaints(right, tmp_path) == []
    assert complaints(right.replace(b"KillMode=mixed", b"KillMode=gently"), tmp_path)
    program.unlink()
    assert complaints(right, tmp_path)


def complaints(unit: bytes, folder: Path) -> list[str]:
    """What systemd says of this unit, others' left out."""
    (folder / UNIT).write_bytes(unit)
    verify = ["systemd-analyze", "--user", "verify", "--recursive-errors=no", "--man=no", str(folder / UNIT)]
    done = subprocess.run(verify, capture_output=True, text=True, env={"XDG_RUNTIME_DIR": str(folder), "HOME": "/"})
    return [line for line in done.stderr.splitlines() if UNIT in line]


def test_a_control_character_is_refused(spec: ServiceSpec) -> None:
    """It would end the line, and begin a setting of the unit."""
    forged = Invocation(("/bin/mlx-serve", "serve", "--model=x\nExecStartPre=/bin/evil"), {})
    with pytest.raises(ServiceError, match="control character"):
        render_unit(dataclasses.replace(spec, invocation=forged))


# ---- systemctl ----------------------------------------------------------------------------------


@pytest.fixture
def unit(fake: State, tmp_path: Path) -> UserUnit:
    return UserUnit(tmp_path / "config home")


def user(*words: str) -> list[str]:
    return ["--user", *words]


FIRST = [user("daemon-reload"), user("enable", UNIT), user("start", UNIT)]


def test_install_twice_starts_once(unit: UserUnit, spec: ServiceSpec, fake: State) -> None:
    assert unit.install(spec) == "installed"
    assert fake.calls() == FIRST
    assert unit.install(spec) == "unchanged"
    assert fake.calls() == [user("enable", UNIT)]
    assert unit.state().pid == fake.read()["pid"]


def test_what_is_installed_is_read_back(unit: UserUnit, spec: ServiceSpec) -> None:
    """With every character that systemd or a shell would take for its own."""
    unit.install(spec)
    assert unit.installed() == spec.invocation


def test_a_change_restarts_it(unit: UserUnit, spec: ServiceSpec, fake: State) -> None:
    unit.install(spec)
    fake.calls()
    assert unit.install(dataclasses.replace(spec, stop_s=31)) == "updated"
    assert fake.calls() == [user("daemon-reload"), user("enable", UNIT), user("restart", UNIT)]


def test_an_upgrade_restarts_it(unit: UserUnit, spec: ServiceSpec, fake: State) -> None:
    unit.install(spec)
    fake.calls()
    assert unit.install(dataclasses.replace(spec, version="1.1")) == "updated"
    assert fake.calls() == [user("daemon-reload"), user("enable", UNIT), user("restart", UNIT)]


def test_one_that_failed_too_often_starts_again(unit: UserUnit, spec: ServiceSpec, fake: State) -> None:
    unit.install(spec)
    fake.change(failed=True, pid=0)
    fake.calls()
    state = unit.state()
    assert (state.is_loaded, state.pid, state.last_exit) == (True, None, "killed: Killed: 9")
    unit.start()
    assert fake.calls() == [user("reset-failed", UNIT), user("start", UNIT)]
    unit.start()
    assert fake.calls() == []


def test_stop_and_restart(unit: UserUnit, spec: ServiceSpec, fake: State) -> None:
    unit.install(spec)
    fake.calls()
    unit.stop()
    unit.stop()
    assert fake.calls() == [user("stop", UNIT)]
    unit.restart()
    assert fake.calls() == [user("restart", UNIT)]


def test_uninstall_leaves_nothing(unit: UserUnit, spec: ServiceSpec, fake: State) -> None:
    unit.install(spec)
    fake.calls()
    assert unit.uninstall()
    assert fake.calls() == [user("disable", "--now", UNIT), user("daemon-reload")]
    assert list(unit.definition.parent.iterdir()) == []
    assert unit.installed() is None
    assert not unit.uninstall()
    assert fake.calls() == []


def test_without_a_session_the_error_says_what_to_do(unit: UserUnit, spec: ServiceSpec, fake: State) -> None:
    fake.change(answers={"show": [[1, "Failed to connect to bus: No medium found"]]})
    with pytest.raises(ServiceError, match=r"No medium found; systemd must run for this user"):
        unit.install(spec)
    assert not unit.definition.exists()


def test_the_log_is_the_journal_or_the_file(unit: UserUnit) -> None:
    assert unit.show_log(None, 7, True)[:3] == ["journalctl", "--user", "--unit"]
    assert unit.show_log(Path("/a log"), 7, False) == ["tail", "-n", "7", "/a log"]
