"""`mlx-serve config`: what is set and where, whether a file is legal, and a file to begin with."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mlx_server.cli.flags import ConfigFile, SettingDoc, describe_settings
from mlx_server.core.config_file import chosen_config_path, default_config_path
from mlx_server.core.errors import MlxServeError, SettingsError
from mlx_server.core.setting_docs import is_size, value_text
from mlx_server.core.settings import LoadedSettings, Settings, check_config_file, load_settings_with_origins

PLAIN_WIDTH = 200
"""Columns where stdout is no terminal: wide enough that no line wraps."""

config = typer.Typer(name="config", help="Settings: show, check and begin the TOML file.", no_args_is_help=True)


class ConfigExistsError(MlxServeError):
    """A file that `config init` will not write over."""


@config.command()
def show(
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: value, origin and environment variable.")] = False,
) -> None:
    """Show every setting's value and where it comes from: the environment, the file, or the default."""
    loaded = load_settings_with_origins(config)
    if as_json:
        typer.echo(json.dumps(_as_json(loaded), indent=2))
        return
    typer.echo(f"file: {loaded.file or f'none ({default_config_path()} does not exist)'}", err=True)
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for doc in describe_settings():
        origin = loaded.origins[doc.name]
        where = doc.environment if origin == "environment" else origin
        text = value_text(Settings.model_fields[doc.name], getattr(loaded.settings, doc.name))
        table.add_row(doc.name, text, where, style="dim" if origin == "default" else None)
    out = Console()
    out.print(table, width=None if out.is_terminal else PLAIN_WIDTH, highlight=False, markup=False)


@config.command()
def validate(
    file: Annotated[Path | None, typer.Argument(help="The file to check; by default the one that is read.")] = None,
) -> None:
    """Check a file alone, whatever the environment says. The exit code is 2 where something is not legal."""
    path = file or chosen_config_path()
    if path is None:
        raise SettingsError(
            f"there is no file to check: {default_config_path()} does not exist; 'mlx-serve config init' writes one"
        )
    values = check_config_file(path)
    typer.echo(f"{path} is legal; it sets {', '.join(values) or 'nothing'}.", err=True)


@config.command()
def init(
    config: ConfigFile = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Write a file that describes every setting with its default and range. All of it is commented out."""
    path = config.expanduser() if config is not None else default_config_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, config_template(), force)
    except FileExistsError as error:
        raise ConfigExistsError(f"{path} exists; --force writes over it") from error
    except OSError as error:
        raise SettingsError(f"the configuration file '{path}' cannot be written: {error.strerror or error}") from error
    typer.echo(f"Wrote {path}.", err=True)


def config_template() -> str:
    """A TOML file in which every setting is described and commented out (`test_template_says_everything`)."""
    return "\n".join([*_HEAD, *(line for doc in describe_settings() for line in _entry(doc))])


_HEAD = (
    "# Settings of mlx-serve. A flag wins over an environment variable, and that over this file.",
    '# Take the \'# \' away from a line to set it. Sizes are written as "512MB" or "4GB", in powers of 1024.',
    "# 'mlx-serve config validate' checks this file; the daemon reads it when it starts.",
    "",
)


def _entry(doc: SettingDoc) -> Iterator[str]:
    default = Settings.model_fields[doc.name].default
    legal = doc.legal.replace("`", "")
    yield f"## {doc.description}"
    yield f"## Default {doc.default}; legal: {legal}. Flag {doc.flag}, environment {doc.environment}."
    yield f"# {doc.name} = {'' if default is None else _toml(doc.name, default)}".rstrip()
    yield ""


def _toml(name: str, value: Any) -> str:
    """The value as TOML: its strings, numbers, booleans and arrays are written as JSON's here."""
    if is_size(Settings.model_fields[name]):
        value = value_text(Settings.model_fields[name], value)
    return json.dumps(value)


def _as_json(loaded: LoadedSettings) -> dict[str, Any]:
    values = loaded.settings.model_dump(mode="json")
    return {
        "file": None if loaded.file is None else str(loaded.file),
        "settings": {
            doc.name: {"value": values[doc.name], "from": loaded.origins[doc.name], "environment": doc.environment}
            for doc in describe_settings()
        },
    }


def _write(path: Path, text: str, force: bool) -> None:
    """The whole file or none of it. Raises `FileExistsError` unless `force`."""
    if path.exists() and not force:
        raise FileExistsError(path)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
