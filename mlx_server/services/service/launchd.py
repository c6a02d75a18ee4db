"""launchd: a LaunchAgent of the user, which runs from login on. See launchd.plist(5) and launchctl(1)."""

from __future__ import annotations

import plistlib
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from mlx_server.services.service.definition import Invocation, ServiceError, ServiceSpec
from mlx_server.services.service.manager import Change, ServiceState
from mlx_server.services.service.tools import call, read_definition, write_definition

LABEL = "local.mlx-serve"
THROTTLE_S = 30
"""Least time between two starts: what cannot start costs a second of one core each time."""

_NOT_LOADED = 113  # launchctl print: no such service
_ON_ITS_WAY = (0, 3, 36, _NOT_LOADED)  # launchctl bootout: done, no such process, in progress
_BUSY = (5, 37)  # launchctl bootstrap, while launchd still tidies up after a bootout
_BOOTSTRAP_TRIES = 10
_POLL_S = 0.3
_GRACE_S = 10
_GUI_HINT = (
    "a LaunchAgent needs its user to be logged in at the Mac's own screen, ssh is not enough; "
    "launchd/README.md has a LaunchDaemon for Macs that nobody logs in to"
)


def render_plist(spec: ServiceSpec, user: str | None = None) -> bytes:
    """The property list of a LaunchAgent; with the name of a user, of a LaunchDaemon that runs as that one."""
    if spec.log_file is None:
        raise ValueError("launchd keeps no output: a log file is needed")
    limits = {"NumberOfFiles": spec.open_files}
    plist: dict[str, Any] = {
        "Label": LABEL,
        "ProgramArguments": list(spec.invocation.command),
        "EnvironmentVariables": dict(spec.invocation.environment),
        "WorkingDirectory": str(spec.home),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": THROTTLE_S,
        "ExitTimeOut": spec.stop_s,
        # Standard is throttled lightly; Background, and Adaptive without XPC, can clamp the GPU as well.
        "ProcessType": "Interactive",
        "SoftResourceLimits": limits,
        "HardResourceLimits": limits,
        "StandardOutPath": str(spec.log_file),
        "StandardErrorPath": str(spec.log_file),
    }
    if user is not None:
        plist["UserName"] = user
    comment = f"<!-- mlx-serve {spec.version}; written by 'mlx-serve service install' -->\n<plist "
    return plistlib.dumps(plist, sort_keys=False).replace(b"<plist ", comment.encode(), 1)


class LaunchAgent:
    """The LaunchAgent of this user, driven through `launchctl`. Implements `ServiceManager`."""

    def __init__(self, home: Path, uid: int) -> None:
        self._domain = f"gui/{uid}"
        self._target = f"{self._domain}/{LABEL}"
        self.definition = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self.default_log: Path | None = home / "Library" / "Logs" / "mlx-serve" / "mlx-serve.log"

    @property
    def name(self) -> str:
        return f"launchd ({self._target})"

    def install(self, spec: ServiceSpec) -> Change:
        before, wanted = read_definition(self.definition), render_plist(spec)
        if before != wanted:
            self._boot_out()
            if spec.log_file is not None:
                spec.log_file.parent.mkdir(parents=True, exist_ok=True)  # launchd makes no folders
            write_definition(self.definition, wanted)
        self.start()
        if before is None:
            return "installed"
        return "unchanged" if before == wanted else "updated"

    def uninstall(self) -> bool:
        was_loaded = self._boot_out()
        was_there = self.definition.exists()
        self.definition.unlink(missing_ok=True)
        if self.default_log is not None:
            shutil.rmtree(self.default_log.parent, ignore_errors=True)
        return was_loaded or was_there

    def installed(self) -> Invocation | None:
        plist = self._plist()
        if plist is not None:
            return Invocation(tuple(plist["ProgramArguments"]), plist.get("EnvironmentVariables", {}))
        if self.definition.exists():
            raise ServiceError(f"{self.definition} is not the plist of a service: run 'mlx-serve service install'")
        return None

    def start(self) -> None:
        state = self.state()
        if state.pid is not None:
            return
        if state.is_loaded:
            call("launchctl", "kickstart", self._target)
            return
        if not self.definition.exists():
            raise ServiceError("the service is not installed: 'mlx-serve service install'")
        call("launchctl", "enable", self._target, hint=_GUI_HINT)
        self._boot_in()

    def stop(self) -> None:
        self._boot_out()

    def restart(self) -> None:
        if self.state().pid is None:
            self.start()
            return
        # launchctl(1) does not say how kickstart -k kills; SIGTERM lets the answers that run end.
        call("launchctl", "kill", "SIGTERM", self._target)
        self._wait_until(lambda state: state.pid is None)
        call("launchctl", "kickstart", "-k", self._target)

    def state(self) -> ServiceState:
        printed = call("launchctl", "print", self._target, expected=(0, _NOT_LOADED), hint=_GUI_HINT)
        if printed.returncode == _NOT_LOADED:
            return ServiceState(is_loaded=False)
        figures = dict(re.findall(r"^\t([a-z ]+) = (.*)$", printed.stdout, re.MULTILINE))
        pid = figures.get("pid", "")
        return ServiceState(
            is_loaded=True,
            pid=int(pid) if pid.isdecimal() else None,
            last_exit=_last_exit(figures),
            restarts=max(int(figures.get("runs", "1")), 1) - 1,
        )

    def show_log(self, log_file: Path | None, lines: int, follow: bool) -> list[str]:
        path = log_file or self.default_log
        if path is None or not path.exists():
            raise ServiceError(f"there is no log yet: {path}")
        return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(path)]

    def _plist(self) -> dict[str, Any] | None:
        """None when there is none that can be read."""
        content = read_definition(self.definition)
        try:
            plist = None if content is None else plistlib.loads(content)
        except (plistlib.InvalidFileException, ExpatError, ValueError):
            return None
        return plist if isinstance(plist, dict) and "ProgramArguments" in plist else None

    def _boot_in(self) -> None:
        command = ("launchctl", "bootstrap", self._domain, str(self.definition))
        for _ in range(_BOOTSTRAP_TRIES):
            if call(*command, expected=(0, *_BUSY), hint=_GUI_HINT).returncode == 0:
                return
            time.sleep(_POLL_S)
        call(*command, hint=_GUI_HINT)

    def _boot_out(self) -> bool:
        """Whether it was loaded. launchd answers before the daemon has ended, so wait for that."""
        if not self.state().is_loaded:
            return False
        call("launchctl", "bootout", self._target, expected=_ON_ITS_WAY)
        self._wait_until(lambda state: not state.is_loaded)
        return True

    def _wait_until(self, is_over: Callable[[ServiceState], bool]) -> None:
        limit_s = (self._plist() or {}).get("ExitTimeOut", 0) + _GRACE_S
        deadline = time.monotonic() + limit_s
        while not is_over(self.state()):
            if time.monotonic() > deadline:
                raise ServiceError(f"the daemon has not ended within {limit_s} s; 'mlx-serve service status'")
            time.sleep(_POLL_S)


def _last_exit(figures: dict[str, str]) -> str:
    signal = figures.get("last terminating signal")
    if signal:
        return f"killed: {signal}"
    code = figures.get("last exit code", "")
    return "" if not code or code.startswith("(") else f"status {code}"
