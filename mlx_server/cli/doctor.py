"""`mlx-serve doctor`: what is wrong here, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import typer
from rich.table import Table
from rich.text import Text

from mlx_server.cli.checks.compute import check_mlx
from mlx_server.cli.checks.finding import Finding
from mlx_server.cli.checks.machine import check_disk, check_memory, check_open_files
from mlx_server.cli.checks.setup import (
    check_config_file,
    check_exposure,
    check_port,
    check_service,
    check_variables,
)
from mlx_server.cli.flags import ConfigFile
from mlx_server.cli.options import Json
from mlx_server.cli.output import print_table
from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import Settings, load_settings_with_origins

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(config: ConfigFile = None, as_json: Json = False) -> None:
    """Look at MLX, memory, disk, port, keys, settings and the service; each finding comes with its fix.

    The exit code is 1 where something keeps the daemon from serving.
    """
    findings = list(examine(config))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        print_table(_table(findings))
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)


def examine(config: ConfigFile = None) -> Iterator[Finding]:
    """Every finding. With settings that are not legal, the rest is looked at by the defaults."""
    yield from check_mlx()
    yield check_memory()
    yield check_disk()
    try:
        loaded = load_settings_with_origins(config)
        settings = loaded.settings
        yield check_config_file(loaded.file)
    except SettingsError as error:
        settings = Settings.model_construct()
        yield Finding("settings", "fail", str(error), "correct the file, the variable or the flag it names")
    yield from check_variables()
    yield check_exposure(settings)
    yield check_port(settings)
    yield check_open_files(settings)
    yield check_service()


def _table(findings: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.text)
        if finding.fix:
            text.append(f"\n-> {finding.fix}", style="bold")
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), Text(finding.subject), text)
    return table
