"""What the service runs: the command, its environment and its limits."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from mlx_server import __version__
from mlx_server.core.errors import MlxServeError
from mlx_server.core.settings import Settings

PROGRAM = "mlx-serve"
SETTING_PREFIX = "MLX_SERVE_"
ENGINE_STOP_S = 15
"""Beside `drain_s`: for the last words of answers that are ended, and for the engine to free the model."""

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_PLACES = ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""They say where models, settings and keys are: without them the service would not find what the shell finds."""
_OPEN_FILES = 4096


class ServiceError(MlxServeError):
    """The service cannot be managed. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """command: the absolute path of a program, then its arguments. environment: all that is set for it."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A service as it should be.

    version: of mlx-serve, so that an upgrade is a change. stop_s: seconds from SIGTERM to SIGKILL. open_files: soft and
    hard limit. log_file: where everything goes that the daemon writes; None for the system's journal.
    """

    invocation: Invocation
    version: str
    home: Path
    stop_s: int
    open_files: int
    log_file: Path | None


def make_spec(
    program: Path,
    settings: Settings,
    flags: Mapping[str, str | bool],
    config: Path | None,
    environ: Mapping[str, str],
    default_log: Path | None,
) -> ServiceSpec:
    """The service that serves as `mlx-serve serve` with these flags would here and now.

    settings: what flags, environment and configuration file come to. flags: names of settings -> what was given.
    default_log: where the log goes when no setting says so. Paths are made absolute: a service starts elsewhere.
    """
    arguments = [] if config is None else [f"--config={_absolute(config)}"]
    arguments += [_argument(name, value) for name, value in flags.items()]
    if settings.log_file is None and default_log is not None:
        arguments.append(_argument("log_file", str(default_log)))
    home = Path(environ.get("HOME") or Path.home())
    log_file = settings.log_file or default_log
    return ServiceSpec(
        Invocation((str(program), "serve", *arguments), _environment(environ, home)),
        version=__version__,
        home=home,
        stop_s=math.ceil(settings.drain_s) + ENGINE_STOP_S,
        open_files=max(_OPEN_FILES, 4 * settings.max_connections),
        log_file=None if log_file is None else _absolute(log_file),
    )


def find_program() -> Path:
    """The installed `mlx-serve` that belongs to this Python. Raises `ServiceError` where there is none.

    A link on PATH to it comes first: pipx, uv and Homebrew keep it where it is while versions move behind it.
    """
    own = Path(sys.prefix) / "bin" / PROGRAM
    on_path = shutil.which(PROGRAM)
    if on_path is not None and own.exists() and Path(on_path).resolve() == own.resolve():
        return _absolute(Path(on_path))
    if os.access(own, os.X_OK):
        return own
    raise ServiceError(
        f"there is no {own}, which the service would run: install the package (pipx install, uv tool install, or "
        "pip install into this environment) and use the mlx-serve that it brings"
    )


def given_flags(command: tuple[str, ...]) -> tuple[Path | None, dict[str, str | bool]]:
    """The configuration file and the flags of a command that `make_spec` made; what is not of its form is left out."""
    config: Path | None = None
    flags: dict[str, str | bool] = {}
    for argument in command[2:]:
        dashed, has_value, value = argument.removeprefix("--").partition("=")
        name = dashed.replace("-", "_")
        if name == "config":
            config = Path(value)
        elif name in Settings.model_fields:
            flags[name] = value if has_value else True
        elif name.removeprefix("no_") in Settings.model_fields:
            flags[name.removeprefix("no_")] = False
    return config, flags


def _argument(name: str, value: str | bool) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"--{dashed}={_anchored(name, value)}"


def _environment(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """The settings and places of `environ`, and nothing else of it."""
    kept = {"HOME": str(home), "PATH": _PATH}
    for name in Settings.model_fields:
        variable = SETTING_PREFIX + name.upper()
        if variable in environ:
            kept[variable] = _anchored(name, environ[variable])
    return kept | {name: environ[name] for name in _PLACES if environ.get(name)}


def _anchored(name: str, value: str) -> str:
    """The value of a setting, absolute where it is a path that the folder of the shell decides about."""
    annotation = Settings.model_fields[name].annotation
    is_path = Path in (annotation, *get_args(annotation))
    if is_path or (name == "model" and Path(value).expanduser().is_dir()):
        return str(_absolute(Path(value)))
    return value


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()
