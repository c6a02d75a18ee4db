"""Short names for models, kept in aliases.json in the user's folder for settings."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs

from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import DEMO_MODEL

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_RESERVED = frozenset({DEMO_MODEL, "default"})
"""Names that every daemon knows."""

_Aliases = dict[Annotated[str, msgspec.Meta(pattern=f"^{_NAME}$")], Annotated[str, msgspec.Meta(min_length=1)]]


def aliases_path() -> Path:
    return platformdirs.user_config_path("mlx-serve", appauthor=False) / "aliases.json"


def read_aliases() -> dict[str, str]:
    """Targets by name; empty where there is no file. Raises `SettingsError` for a damaged one."""
    path = aliases_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Aliases)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SettingsError(f"the aliases in {path} cannot be read: {error}; correct or remove the file") from error


def expand_alias(name: str) -> str:
    """The target of `name`, or `name` itself. Raises `SettingsError`."""
    return read_aliases().get(name, name) if re.fullmatch(_NAME, name) else name


def set_alias(name: str, target: str) -> None:
    """Raises `SettingsError` for a name that is not legal or taken, for an alias as target, and what writing raises."""
    if re.fullmatch(_NAME, name) is None or name in _RESERVED:
        legal = "1 to 64 letters, digits and . _ -, beginning with a letter or digit, and not 'demo' or 'default'"
        raise SettingsError(f"alias = {name[:80]!r}: must be {legal}")
    aliases = read_aliases()
    if target == name or target in aliases:
        raise SettingsError(f"target = {target[:80]!r}: must be a model, not an alias")
    _write({**aliases, name: target})


def remove_alias(name: str) -> bool:
    """False when there is none. Raises `SettingsError`."""
    aliases = read_aliases()
    if aliases.pop(name, None) is None:
        return False
    _write(aliases)
    return True


def _write(aliases: dict[str, str]) -> None:
    """Replace the file in one step."""
    path = aliases_path()
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(aliases), indent=2) + b"\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsError(f"the aliases in {path} cannot be written: {error.strerror or error}") from error
