"""The one TOML file with settings: where it is, and what it says."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import platformdirs
from pydantic_settings import BaseSettings, TomlConfigSettingsSource

from mlx_server.core.errors import SettingsError

CONFIG_VARIABLE = "MLX_SERVE_CONFIG"


def default_config_path() -> Path:
    """config.toml in the platform's folder for settings; it need not exist."""
    return platformdirs.user_config_path("mlx-serve", appauthor=False) / "config.toml"


def chosen_config_path(given: Path | None = None) -> Path | None:
    """The file that is read: `given`, else that of `MLX_SERVE_CONFIG`, else the default one; None where there is none.

    A file that was named must exist, lest a misspelt name pass for defaults: reading it raises then.
    """
    named = given or os.environ.get(CONFIG_VARIABLE) or None
    if named is not None:
        return Path(named).expanduser()
    path = default_config_path()
    return path if path.exists() else None


def read_config_file(path: Path, settings: type[BaseSettings]) -> dict[str, Any]:
    """Key -> value as TOML has it, unchecked. Raises `SettingsError` that names the file and what is wrong with it."""
    try:
        with path.open("rb"):
            pass  # pydantic-settings takes a file that it cannot find for an empty one
        return dict(TomlConfigSettingsSource(settings, toml_file=path)())
    except OSError as error:
        raise SettingsError(f"the configuration file '{path}' cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"the configuration file '{path}' is not TOML: {error}") from error
