"""The commands and files of service managers."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Container
from pathlib import Path

from mlx_server.services.service.definition import ServiceError


def call(*command: str, expected: Container[int] = (0,), hint: str = "") -> subprocess.CompletedProcess[str]:
    """Run it to its end. Raises `ServiceError` with what it said and `hint`, unless its status is `expected`."""
    shown = " ".join(command)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (no shell)
    except OSError as error:
        raise ServiceError(f"'{shown}' cannot be run: {error.strerror}") from error
    if done.returncode in expected:
        return done
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    raise ServiceError(f"'{shown}' failed with status {done.returncode}: {said}{'; ' if hint else ''}{hint}")


def read_definition(path: Path) -> bytes | None:
    """None when there is no such file. Raises `ServiceError`."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror}") from error


def write_definition(path: Path, content: bytes) -> None:
    """In one step: the manager sees the old file or the new one. Raises `ServiceError`."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ServiceError(f"{path} cannot be written: {error.strerror}") from error
