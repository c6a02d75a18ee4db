"""API keys: what one is, and the file that keeps their hashes.

A key is `mlxs-<id>-<secret>`. Its id is public and appears in logs; its secret is 256 random bits, shown once. At rest
there is the SHA-256 of the whole key. A slow hash protects secrets that can be guessed; nobody counts through 2^256,
and a fast one costs a request microseconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import platformdirs

from mlx_server.core.errors import MlxServeError, SettingsError
from mlx_server.core.messages import Priority
from mlx_server.core.settings import Settings

MAX_CONCURRENT = 10_000
MAX_PER_MINUTE = 1_000_000
_MAX_FILE_BYTES = 1 << 20
_ID_BYTES = 4
_SECRET_BYTES = 32
_ID = r"[0-9a-f]{8}"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
_NOBODY = "0" * 64
"""What the digest of an unknown key is compared with; no text is known to have it."""

Tier = Literal["high", "normal", "low"]


class KeyNameError(MlxServeError):
    """A name that a new key cannot have."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a key; not the key.

    sha256: of the whole key's text, in hex. max_concurrent: requests answered at the same time, per_minute: requests in
    a minute, on average; None for no limit. created_s: seconds since the epoch.
    """

    id: Annotated[str, msgspec.Meta(pattern=f"^{_ID}$")]
    name: Annotated[str, msgspec.Meta(pattern=f"^{_NAME}$")]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    created_s: int
    tier: Tier = "normal"
    max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENT)] | None = None
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=MAX_PER_MINUTE)] | None = None

    @property
    def priority(self) -> Priority:
        """The most important that a request with this key can be."""
        return Priority[self.tier.upper()]


class _KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1]
    keys: tuple[ApiKey, ...]


def keys_path(settings: Settings) -> Path:
    """Where the keys are: `keys_file`, else keys.json in the platform's folder for settings."""
    return settings.keys_file or platformdirs.user_config_path("mlx-serve", appauthor=False) / "keys.json"


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys of the file, none where there is no file. Raises `SettingsError` for a file that cannot be trusted."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise _untrusted(path, "it is not a regular file")
            if stat.S_IMODE(about.st_mode) & 0o077:
                raise _untrusted(path, "others than its owner have access to it; 'chmod 600' ends that")
            if about.st_size > _MAX_FILE_BYTES:
                raise _untrusted(path, f"it is larger than {_MAX_FILE_BYTES} bytes")
            data = file.read()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _untrusted(path, error.strerror or str(error)) from error
    try:
        keys = msgspec.json.decode(data, type=_KeyFile).keys
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _untrusted(path, f"it is damaged: {error}") from error
    if len({key.id for key in keys}) < len(keys):
        raise _untrusted(path, "it is damaged: two keys have the same id")
    return keys


def add_key(
    path: Path, name: str, tier: Tier = "normal", max_concurrent: int | None = None, per_minute: int | None = None
) -> tuple[ApiKey, str]:
    """A new key in the file, and its text, which is kept nowhere. Raises `KeyNameError`, `SettingsError`."""
    if re.fullmatch(_NAME, name) is None or re.fullmatch(_ID, name):
        legal = "1 to 64 letters, digits and . _ @ -, beginning with a letter or digit, and not 8 hexadecimal digits"
        raise KeyNameError(f"the name of a key must be {legal}; not {name[:80]!r}")
    with _locked(path):
        keys = read_keys(path)
        if any(key.name == name for key in keys):
            raise KeyNameError(f"there is a key named {name!r} already; revoke it first, or choose another name")
        taken = {key.id for key in keys}
        while (key_id := secrets.token_hex(_ID_BYTES)) in taken:
            pass
        text = f"mlxs-{key_id}-{secrets.token_urlsafe(_SECRET_BYTES)}"
        key = ApiKey(
            id=key_id,
            name=name,
            sha256=_digest(text),
            created_s=int(time.time()),
            tier=tier,
            max_concurrent=max_concurrent,
            per_minute=per_minute,
        )
        _write(path, (*keys, key))
    return key, text


def revoke_key(path: Path, which: str) -> ApiKey | None:
    """Take the key with this name or id out of the file; None when there is none. Raises `SettingsError`."""
    if not path.exists():
        return None
    with _locked(path):
        keys = read_keys(path)
        found = next((key for key in keys if which in (key.id, key.name)), None)
        if found is not None:
            _write(path, tuple(key for key in keys if key is not found))
    return found


def match_key(keys: Mapping[str, ApiKey], text: str) -> ApiKey | None:
    """The key among `keys` (by id) whose text this is.

    Every text takes the same way, so that the time says nothing of how much of it was right.
    """
    key = keys.get(text[5:13])
    matches = hmac.compare_digest(_digest(text), _NOBODY if key is None else key.sha256)
    return key if matches else None


def _open_at_once(path: str, flags: int) -> int:
    """A pipe without a writer must not hold up the daemon."""
    return os.open(path, flags | os.O_NONBLOCK)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _untrusted(path: Path, reason: str) -> SettingsError:
    return SettingsError(f"keys_file = '{path}' cannot be used: {reason}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time. The lock is a file beside, since the file itself is replaced."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _untrusted(path, error.strerror or str(error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, keys: tuple[ApiKey, ...]) -> None:
    """Replace the file in one step: whoever reads sees the old keys or the new ones (`test_keys.py`)."""
    data = msgspec.json.format(msgspec.json.encode(_KeyFile(version=1, keys=keys)), indent=2) + b"\n"
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise _untrusted(path, error.strerror or str(error)) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
