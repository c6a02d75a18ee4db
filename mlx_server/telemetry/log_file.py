"""A log file for everything that the daemon and its engine write, crashes included. It rotates itself."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path

from mlx_server.core.errors import SettingsError

MAX_BYTES = 10 << 20
KEPT = 3
"""Older files beside it: `<name>.1` is the youngest."""


def write_to(path: Path) -> None:
    """Send stdout and stderr of this process, and of those it starts, to the end of `path`. Raises `SettingsError`."""
    path = path.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"log_file = '{path}' cannot be written: {error.strerror}") from error
    sys.stdout.flush()
    sys.stderr.flush()
    for standard in (sys.stdout, sys.stderr):
        os.dup2(descriptor, standard.fileno())
    os.close(descriptor)


def keep_bounded(path: Path) -> None:
    """From now on: rotate the file that `write_to` opened when a line of the daemon's makes it too long."""
    logging.getLogger("mlx_server").addHandler(_Rotation(path.expanduser()))


class _Rotation(logging.Handler):
    """Copies the file and empties it: the engine's process goes on writing to the one that it has inherited.

    What that process writes between copy and emptying is lost.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if os.fstat(sys.stderr.fileno()).st_size > MAX_BYTES:
                self._rotate()
        except OSError:
            self.handleError(record)

    def _rotate(self) -> None:
        for age in range(KEPT - 1, 0, -1):
            older = aged(self._path, age)
            if older.exists():
                older.replace(aged(self._path, age + 1))
        shutil.copy(self._path, aged(self._path, 1))
        os.truncate(sys.stderr.fileno(), 0)


def aged(path: Path, age: int) -> Path:
    """The file that was rotated `age` times, from 1 to `KEPT`."""
    return path.with_name(f"{path.name}.{age}")
