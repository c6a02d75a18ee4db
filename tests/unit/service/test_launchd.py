"""The plist is what launchd documents, and launchctl is called as it should be."""

import dataclasses
import plistlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_server.services.service import launchd
from mlx_server.services.service.definition import Invocation, ServiceError, ServiceSpec
from mlx_server.services.service.launchd import LABEL, LaunchAgent, render_plist
from tests.fakes.service_manager import State

ROOT = Path(__file__).resolve().parents[3]
TARGET = f"gui/501/{LABEL}"

# Keys and types of launchd.plist(5), macOS 15; those that describe sockets, calendars and the like are left out.
DOCUMENTED: dict[str, type] = {
    "Label": str,
    "Disabled": bool,
    "UserName": str,
    "GroupName": str,
    "InitGroups": bool,
    "Program": str,
    "ProgramArguments": list,
    "EnableGlobbing": bool,
    "EnableTransactions": bool,
    "EnablePressuredExit": bool,
    "KeepAlive": dict,
    "RunAtLoad": bool,
    "RootDirectory": str,
    "WorkingDirectory": str,
    "EnvironmentVariables": dict,
    "Umask": int,
    "TimeOut": int,
    "ExitTimeOut": int,
    "ThrottleInterval": int,
    "StandardInPath": str,
    "StandardOutPath": str,
    "StandardErrorPath": str,
    "Debug": bool,
    "WaitForDebugger": bool,
    "SoftResourceLimits": dict,
    "HardResourceLimits": dict,
    "Nice": int,
    "ProcessType": str,
    "AbandonProcessGroup": bool,
    "LowPriorityIO": bool,
    "LowPriorityBackgroundIO": bool,
    "LaunchOnlyOnce": bool,
    "SessionCreate": bool,
    "LegacyTimers": bool,
    "LimitLoadToSessionType": str,
    "AssociatedBundleIdentifiers": list,
}
KEEP_ALIVE: dict[str, type] = {"SuccessfulExit": bool, "Crashed": bool, "PathState": dict, "OtherJobEnabled": dict}
LIMITS = {
    "Core",
    "CPU",
    "Data",
    "FileSize",
    "MemoryLock",
    "NumberOfFiles",
    "NumberOfProcesses",
    "ResidentSetSize",
    "Stack",
}
PROCESS_TYPES = {"Background", "Standard", "Adaptive", "Interactive"}


def check(plist: dict[str, Any]) -> None:
    """Fails unless launchd documents every key of it, with its type."""
    for key, value in plist.items():
        assert type(value) is DOCUMENTED[key], key
    assert all(type(value) is KEEP_ALIVE[key] for key, value in plist["KeepAlive"].items())
    assert all(type(argument) is str for argument in plist["ProgramArguments"])
    assert all(type(value) is str for value in plist["EnvironmentVariables"].values())
    for limits in (plist["SoftResourceLimits"], plist["HardResourceLimits"]):
        assert limits.keys() <= LIMITS and all(type(value) is int for value in limits.values())
    assert plist["ProcessType"] in PROCESS_TYPES
    for key in ("WorkingDirectory", "StandardOutPath", "StandardErrorPath"):
        assert Path(plist[key]).is_absolute(), key
    assert Path(plist["ProgramArguments"][0]).is_absolute()


@pytest.mark.parametrize("user", [None, "anna"])
def test_the_plist_is_what_launchd_documents(spec: ServiceSpec, user: str | None) -> None:
    plist = plistlib.loads(render_plist(spec, user))
    check(plist)
    assert plist.get("UserName") == user
    assert plist["ProgramArguments"] == list(spec.invocation.command)
    assert plist["EnvironmentVariables"] == spec.invocation.environment
    assert (plist["ExitTimeOut"], plist["KeepAlive"]) == (30, {"SuccessfulExit": False})


@pytest.mark.parametrize(
    "wrong", [{"Nize": 1}, {"ExitTimeOut": "30"}, {"KeepAlive": True}, {"ProcessType": "Fast"}, {"RunAtLoad": 1}]
)
def test_the_check_of_plists_can_fail(spec: ServiceSpec, wrong: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, KeyError, AttributeError)):
        check(plistlib.loads(render_plist(spec)) | wrong)


@pytest.mark.parametrize("name", [f"{LABEL}.agent.plist", f"{LABEL}.daemon.plist"])
def test_templates_are_current(name: str) -> None:
    """scripts/write_launchd_templates.py writes them."""
    plist = plistlib.loads((ROOT / "launchd" / name).read_bytes())
    check(plist)
    script = [sys.executable, str(ROOT / "scripts" / "write_launchd_templates.py"), "--print", name]
    shown = subprocess.run(script, capture_output=True, check=True, env={"PYTHONPATH": str(ROOT)}).stdout
    assert (ROOT / "launchd" / name).read_bytes() == shown, "run scripts/write_launchd_templates.py"


# ---- launchctl ----------------------------------------------------------------------------------


@pytest.fixture
def agent(spec: ServiceSpec, fake: State, monkeypatch: pytest.MonkeyPatch) -> LaunchAgent:
    monkeypatch.setattr(launchd, "_POLL_S", 0.0)
    return LaunchAgent(spec.home, 501)


def boot_in(agent: LaunchAgent) -> list[list[str]]:
    return [["enable", TARGET], ["bootstrap", "gui/501", str(agent.definition)]]


def test_install_twice_starts_once(agent: LaunchAgent, spec: ServiceSpec, fake: State) -> None:
    assert agent.install(spec) == "installed"
    assert fake.calls() == boot_in(agent)
    assert spec.log_file is not None and spec.log_file.parent.is_dir()
    assert agent.install(spec) == "unchanged"
    assert fake.calls() == []
    assert agent.state().pid == fake.read()["pid"]


def test_a_change_restarts_it(agent: LaunchAgent, spec: ServiceSpec, fake: State) -> None:
    agent.install(spec)
    fake.calls()
    moved = Invocation(("/opt/new env/bin/mlx-serve", "serve"), spec.invocation.environment)
    assert agent.install(dataclasses.replace(spec, invocation=moved)) == "updated"
    assert fake.calls() == [["bootout", TARGET], *boot_in(agent)]
    assert agent.installed() == moved


def test_an_upgrade_restarts_it(agent: LaunchAgent, spec: ServiceSpec, fake: State) -> None:
    agent.install(spec)
    fake.calls()
    assert agent.install(dataclasses.replace(spec, version="1.1")) == "updated"
    assert fake.calls() == [["bootout", TARGET], *boot_in(agent)]


def test_bootstrap_waits_for_the_bootout_and_for_launchd(agent: LaunchAgent, spec: ServiceSpec, fake: State) -> None:
    agent.install(spec)
    fake.change(answers={"bootstrap": [[5, "Bootstrap failed: 5: Input/output error"], [37, "in progress"]]})
    fake.calls()
    assert agent.install(dataclasses.replace(spec, stop_s=31)) == "updated"
    enable, bootstrap = boot_in(agent)
    assert fake.calls() == [["bootout", TARGET], enable, bootstrap, bootstrap, bootstrap]
    assert agent.state().pid is not None


def test_a_refusal_says_what_launchctl_said_and_what_to_do(agent: LaunchAgent, spec: ServiceSpec, fake: State) -> None:
    fake.change(answers={"bootstrap": [[125, "Domain does not support specified action"]]})
    with pytest.raises(ServiceError, match=r"status 125: Domain does not support.*logged in at the Mac's own screen"):
        agent.install(spec)


def test_stop_start_restart(agent: LaunchAgent, spec: ServiceSpec, fake: State) -> None:
    agent.install(spec)
    fake.calls()
    agent.stop()
    agent.stop()
    assert fake.calls() == [["bootout", TARGET]]
    assert agent.state() == launchd.ServiceState(is_loaded=False)
    agent.start()
    agent.start()
    assert fake.calls() == boot_in(agent)
    agent.restart()
    assert fake.calls() == [["kill", "SIGTERM", TARGET], ["kickstart", "-k", TARGET]]
    fake.change(pid=0)
    state = agent.state()
    assert (state.is_loaded, state.pid, state.last_exit, state.restarts) == (True, None, "status 1", 1)
    agent.start()
    assert fake.calls() == [["kickstart", TARGET]]


def test_uninstall_leaves_nothing(agent: LaunchAgent, spec: ServiceSpec, fake: State) -> None:
    assert agent.default_log is not None
    spec = dataclasses.replace(spec, log_file=agent.default_log)
    agent.install(spec)
    agent.default_log.write_text("a line\n")
    fake.calls()
    assert agent.uninstall()
    assert fake.calls() == [["bootout", TARGET]]
    assert [path for path in spec.home.rglob("*") if path.is_file()] == []
    assert not agent.state().is_loaded
    assert agent.installed() is None
    assert not agent.uninstall()
    assert fake.calls() == []


def test_what_is_not_installed_does_not_start(agent: LaunchAgent) -> None:
    with pytest.raises(ServiceError, match="mlx-serve service install"):
        agent.start()


def test_a_broken_plist_is_named_and_replaced(agent: LaunchAgent, spec: ServiceSpec, fake: State) -> None:
    agent.install(spec)
    for broken in (b"<plist>", b"not XML", b"<plist><string/></plist>"):
        agent.definition.write_bytes(broken)
        with pytest.raises(ServiceError, match=r"run 'mlx-serve service install'"):
            agent.installed()
    assert agent.install(spec) == "updated"
    assert agent.installed() == spec.invocation


def test_the_log_is_followed_over_rotations(agent: LaunchAgent, tmp_path: Path) -> None:
    log = tmp_path / "a log"
    with pytest.raises(ServiceError, match="no log yet"):
        agent.show_log(log, 5, False)
    log.touch()
    assert agent.show_log(log, 5, True) == ["tail", "-n", "5", "-F", str(log)]


@pytest.mark.macos
def test_plutil_accepts_the_plist(spec: ServiceSpec, tmp_path: Path) -> None:
    path = tmp_path / "service.plist"
    path.write_bytes(render_plist(spec))
    subprocess.run(["plutil", "-lint", str(path)], check=True)
