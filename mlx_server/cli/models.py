"""`mlx-serve models`: what is on this machine, and short names for it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from mlx_server.cli.chat_backend import default_url
from mlx_server.cli.chat_client import ChatClient, ChatError
from mlx_server.cli.options import Key, Url
from mlx_server.cli.output import facts_table, print_table
from mlx_server.cli.run import exit_codes
from mlx_server.cli.serve import gigabytes
from mlx_server.core.settings import DEMO_MODEL, load_settings

models = typer.Typer(
    name="models", help="Models on this machine: list, look at, download, remove, name.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="'demo', an alias, a Hugging Face repository (owner/name), or a folder.")]


@models.command("list")
def list_models(url: Url = None, key: Key = None) -> None:
    """Show the embedded model, those in the Hugging Face cache, the aliases, and which one is served."""
    from mlx_server.daemon.aliases import read_aliases
    from mlx_server.daemon.model_cache import cached_models
    from mlx_server.daemon.model_source import DEMO_FOLDER

    cached, aliases = cached_models(), read_aliases()
    sizes = {DEMO_MODEL: _folder_size(DEMO_FOLDER)} | {model.repo_id: model.size_bytes for model in cached}
    try:
        served = asyncio.run(_served_among([*sizes, *aliases], url or default_url(load_settings()), key))
    except ChatError as error:
        typer.echo(f"mlx-serve: which one is served is not known: {error}", err=True)
        served = frozenset()
    table = Table("name", "size", "", box=None, pad_edge=False)
    for name, size in sizes.items():
        table.add_row(Text(name), gigabytes(size), "served" if name in served else "")
    for name, target in sorted(aliases.items()):
        table.add_row(Text(name), "", Text(f"alias of {target}" + (", served" if name in served else "")))
    print_table(table)


@models.command()
def show(name: Name) -> None:
    """Tell what a model is, without loading it."""
    from mlx_server.daemon.model_facts import read_facts

    folder = _local_folder(name)
    facts = read_facts(folder)
    rows = {
        "folder": str(folder),
        "type": facts.model_type,
        "parameters": _count(facts.parameters),
        "context": f"{facts.context_tokens:,} tokens",
        "quantization": facts.quantization,
        "weights": gigabytes(facts.size_bytes),
        "served exactly": facts.served,
    }
    print_table(facts_table(rows))


@models.command()
def pull(name: Name) -> None:
    """Download a model from Hugging Face, or what is missing of it, and print its folder."""
    from mlx_server.daemon.aliases import expand_alias
    from mlx_server.daemon.model_source import download, is_repository_id

    repo_id = expand_alias(name)
    if repo_id == DEMO_MODEL:
        raise typer.BadParameter("the demo model is embedded; there is nothing to download")
    if not is_repository_id(repo_id):
        raise typer.BadParameter(f"{repo_id!r} is not a Hugging Face repository (owner/name)")
    with exit_codes():
        folder = download(repo_id)
    if sys.stderr.isatty():
        typer.echo(err=True)  # the progress bars leave the cursor behind them
    typer.echo(folder)


@models.command()
def rm(
    name: Annotated[str, typer.Argument(help="A model in the Hugging Face cache, as 'models list' names it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    key: Key = None,
) -> None:
    """Remove a model from the Hugging Face cache, unless the daemon serves it."""
    from mlx_server.daemon.aliases import read_aliases
    from mlx_server.daemon.model_cache import find_cached, remove_cached

    aliases = read_aliases()
    if name in aliases:
        raise typer.BadParameter(f"{name!r} is an alias; 'mlx-serve models alias {name} --remove' removes it")
    model = find_cached(name)
    if model is None:
        raise typer.BadParameter(f"there is no {name!r} in the Hugging Face cache; see 'mlx-serve models list'")
    url = url or default_url(load_settings())
    names = {name, str(model.folder)} | {alias for alias, target in aliases.items() if target == name}
    if asyncio.run(_served_among(names, url, key)):
        raise ChatError(f"{name} is served by the daemon at {url}; stop that first")
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody can be asked here; --yes removes without asking")
        typer.confirm(f"Remove {name} ({gigabytes(model.size_bytes)}) from {model.folder.parents[1]}?", abort=True)
    remove_cached(model)
    typer.echo(f"{name} is removed, {gigabytes(model.size_bytes)} are free again.", err=True)


@models.command()
def alias(
    name: Annotated[str, typer.Argument(help="The short name: letters, digits and . _ -")],
    target: Annotated[str | None, typer.Argument(help="What it stands for: a repository or a folder.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the name; the model stays.")] = False,
) -> None:
    """Give a model a short name, which --model and every command here take."""
    from mlx_server.daemon.aliases import remove_alias, set_alias
    from mlx_server.daemon.model_source import is_repository_id

    if remove is (target is not None):
        raise typer.BadParameter("give a TARGET, or --remove")
    if target is None:
        if not remove_alias(name):
            raise typer.BadParameter(f"there is no alias {name!r}")
        return
    folder = Path(target).expanduser()
    if folder.is_dir() and target != DEMO_MODEL:
        target = str(_checked(folder))
    elif not is_repository_id(target):
        raise typer.BadParameter(f"there is no folder {target}, and it is not a Hugging Face repository (owner/name)")
    set_alias(name, target)


def _local_folder(name: str) -> Path:
    """In the order of `resolve_model`, without a download. Raises `typer.BadParameter`."""
    from mlx_server.daemon.aliases import expand_alias
    from mlx_server.daemon.model_cache import find_cached
    from mlx_server.daemon.model_source import DEMO_FOLDER

    target = expand_alias(name)
    if target == DEMO_MODEL:
        return DEMO_FOLDER
    folder = Path(target).expanduser()
    if folder.is_dir():
        return _checked(folder)
    cached = find_cached(target)
    if cached is None:
        raise typer.BadParameter(f"{target!r} is not on this machine; 'mlx-serve models pull' downloads it")
    return cached.folder


def _checked(folder: Path) -> Path:
    """Without links and dots. Raises `typer.BadParameter`."""
    from mlx_server.daemon.model_source import looks_like_model

    if not looks_like_model(folder):
        raise typer.BadParameter(f"{folder} has no config.json with model*.safetensors, so it is not a model")
    return folder.resolve()


async def _served_among(names: Collection[str], url: str, key: str | None) -> frozenset[str]:
    """The one under which clients see the model at `url`, else those that the daemon answers to as well.

    None where no daemon runs. Raises `ChatError`.
    """
    async with ChatClient(url, key=key) as client:
        health = await client.health()
        if health is None:
            return frozenset()
        if health.model in names:
            return frozenset({health.model})
        return frozenset([name for name in names if await client.serves(name)])


def _folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _count(number: int) -> str:
    """4_022_468_096 -> '4.02 billion'."""
    for word, unit in (("billion", 10**9), ("million", 10**6)):
        if number >= unit:
            return f"{number / unit:.2f} {word}"
    return f"{number:,}"
