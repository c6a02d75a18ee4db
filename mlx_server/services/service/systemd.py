"""systemd: a unit of the user, which runs from login on. See systemd.service(5) and systemctl(1)."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

from mlx_server.services.service.definition import Invocation, ServiceError, ServiceSpec
from mlx_server.services.service.manager import Change, ServiceState
from mlx_server.services.service.tools import call, read_definition, write_definition

UNIT = "mlx-serve.service"

_EXIT_USAGE = 2  # a setting that is not legal stays so however often it is tried
_PROPERTIES = "ActiveState,MainPID,ExecMainCode,ExecMainStatus,NRestarts"
_EXITED = "1"  # CLD_EXITED
_SESSION_HINT = (
    "systemd must run for this user: log in directly (not through su or sudo) on a machine that was booted with "
    "systemd, or have 'mlx-serve serve' started by what supervises services here"
)


def render_unit(spec: ServiceSpec) -> bytes:
    """The unit file."""
    command = " ".join(_quoted(argument).replace("$", "$$") for argument in spec.invocation.command)
    environment = [f"Environment={_quoted(f'{name}={value}')}" for name, value in spec.invocation.environment.items()]
    lines = [
        f"# mlx-serve {spec.version}; written by 'mlx-serve service install'.",
        "# 'systemctl --user edit mlx-serve' adds to it.",
        "[Unit]",
        "Description=mlx-serve, a local LLM daemon",
        "StartLimitIntervalSec=300",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={command}",
        *environment,
        f"WorkingDirectory={str(spec.home).replace('%', '%%')}",
        "Restart=on-failure",
        "RestartSec=5",
        f"RestartPreventExitStatus={_EXIT_USAGE}",
        "# The daemon ends its engine itself, when the answers that run have ended.",
        "KillMode=mixed",
        f"TimeoutStopSec={spec.stop_s}",
        f"LimitNOFILE={spec.open_files}",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines).encode()


class UserUnit:
    """The unit of this user, driven through `systemctl --user`. Implements `ServiceManager`.

    config_home: where the user's settings are, usually ~/.config.
    """

    name = "systemd (user unit)"
    default_log: Path | None = None

    def __init__(self, config_home: Path) -> None:
        self.definition = config_home / "systemd" / "user" / UNIT

    def install(self, spec: ServiceSpec) -> Change:
        before, wanted = read_definition(self.definition), render_unit(spec)
        is_changed = before != wanted
        state = self.state()
        if is_changed:
            write_definition(self.definition, wanted)
            _systemctl("daemon-reload")
        _systemctl("enable", UNIT)
        if state.pid is not None and is_changed:
            _systemctl("restart", UNIT)
        else:
            self.start()
        if before is None:
            return "installed"
        return "updated" if is_changed else "unchanged"

    def uninstall(self) -> bool:
        was_there = self.definition.exists()
        if was_there:
            _systemctl("disable", "--now", UNIT)
            self.definition.unlink(missing_ok=True)
            _systemctl("daemon-reload")
            self._forget_failure()
        return was_there

    def installed(self) -> Invocation | None:
        content = read_definition(self.definition)
        if content is None:
            return None
        lines = content.decode(errors="replace").splitlines()
        command = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
        if len(command) != 1:
            raise ServiceError(f"{self.definition} has no command: run 'mlx-serve service install'")
        variables = [line.removeprefix("Environment=") for line in lines if line.startswith("Environment=")]
        pairs = (_unquoted(text)[0].partition("=") for text in variables)
        return Invocation(
            tuple(argument.replace("$$", "$") for argument in _unquoted(command[0])),
            {name: value for name, _, value in pairs},
        )

    def start(self) -> None:
        if self.state().pid is not None:
            return
        if not self.definition.exists():
            raise ServiceError("the service is not installed: 'mlx-serve service install'")
        self._forget_failure()
        _systemctl("start", UNIT)

    def stop(self) -> None:
        if self.state().is_loaded:
            _systemctl("stop", UNIT)

    def restart(self) -> None:
        if not self.definition.exists():
            raise ServiceError("the service is not installed: 'mlx-serve service install'")
        self._forget_failure()
        _systemctl("restart", UNIT)

    def state(self) -> ServiceState:
        figures = self._figures()
        code, status = figures.get("ExecMainCode", "0"), figures.get("ExecMainStatus", "0")
        pid = int(figures.get("MainPID", "0"))
        return ServiceState(
            is_loaded=figures.get("ActiveState", "inactive") != "inactive",
            pid=pid or None,
            last_exit="" if pid or code == "0" else _last_exit(code, int(status)),
            restarts=int(figures.get("NRestarts", "0")),
        )

    def show_log(self, log_file: Path | None, lines: int, follow: bool) -> list[str]:
        if log_file is not None:
            return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(log_file)]
        return ["journalctl", "--user", "--unit", UNIT, "--lines", str(lines), *(["--follow"] if follow else [])]

    def _figures(self) -> dict[str, str]:
        shown = _systemctl("show", UNIT, f"--property={_PROPERTIES}")
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def _forget_failure(self) -> None:
        """Else systemd refuses to start a unit that has failed too often."""
        if self._figures().get("ActiveState") == "failed":
            _systemctl("reset-failed", UNIT)


def _systemctl(*arguments: str) -> str:
    return call("systemctl", "--user", *arguments, hint=_SESSION_HINT).stdout


def _quoted(text: str) -> str:
    """As systemd reads one word: see "Quoting" in systemd.service(5). Raises `ServiceError` for control characters."""
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ServiceError(f"{text!r} holds a control character, which a unit cannot")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _unquoted(text: str) -> list[str]:
    return [word.replace("%%", "%") for word in shlex.split(text)]


def _last_exit(code: str, status: int) -> str:
    return f"status {status}" if code == _EXITED else f"killed: {signal.strsignal(status)}: {status}"
