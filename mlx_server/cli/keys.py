"""`mlx-serve keys`: make, list and revoke API keys."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mlx_server.core.settings import load_settings
from mlx_server.services.keys import MAX_CONCURRENT, MAX_PER_MINUTE, add_key, keys_path, read_keys, revoke_key

PLAIN_WIDTH = 200
"""Columns where stdout is no terminal: wide enough that no line wraps."""

keys = typer.Typer(
    name="keys", help="API keys: who may use the daemon. It sees a change at once.", no_args_is_help=True
)

KeysFile = Annotated[Path | None, typer.Option(help="File with the keys' hashes, as for serve.", metavar="PATH")]


class TierName(StrEnum):
    """How important the requests of a key are."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


@keys.command()
def add(
    name: Annotated[str, typer.Argument(help="What the key is for; nothing else has this name.")],
    tier: Annotated[TierName, typer.Option(help="Most important priority of its requests.")] = TierName.NORMAL,
    max_concurrent: Annotated[
        int | None, typer.Option(min=1, max=MAX_CONCURRENT, help="Most requests answered at the same time.")
    ] = None,
    per_minute: Annotated[
        int | None, typer.Option(min=1, max=MAX_PER_MINUTE, help="Most requests a minute, on average.")
    ] = None,
    keys_file: KeysFile = None,
) -> None:
    """Make a key and print it, this once. From the first key on, the daemon refuses requests without one."""
    key, text = add_key(_path(keys_file), name, tier.value, max_concurrent, per_minute)
    typer.echo(f"Key {key.id} ({name}). It is shown this once, and requests without a key are refused now:", err=True)
    typer.echo(text)


@keys.command("list")
def list_keys(keys_file: KeysFile = None) -> None:
    """Show the keys, without their secrets."""
    path = _path(keys_file)
    found = read_keys(path)
    if not found:
        typer.echo(f"There are no keys in {path}.", err=True)
        return
    table = Table("id", "name", "tier", "at a time", "a minute", "made", box=None, pad_edge=False)
    for key in found:
        limits = ("any" if limit is None else str(limit) for limit in (key.max_concurrent, key.per_minute))
        table.add_row(key.id, key.name, key.tier, *limits, time.strftime("%Y-%m-%d", time.localtime(key.created_s)))
    out = Console()
    out.print(table, width=None if out.is_terminal else PLAIN_WIDTH)


@keys.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Name or id of the key.", metavar="NAME-OR-ID")],
    keys_file: KeysFile = None,
) -> None:
    """Refuse a key from the next request on. Answers that are being given are completed."""
    path = _path(keys_file)
    revoked = revoke_key(path, key)
    if revoked is None:
        raise typer.BadParameter(f"there is no key with the name or id {key!r} in {path}")
    typer.echo(f"Key {revoked.id} ({revoked.name}) is revoked.", err=True)


def _path(keys_file: Path | None) -> Path:
    return keys_path(load_settings(keys_file=keys_file))
