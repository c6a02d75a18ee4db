"""The `mlx-serve` command: subcommands, and errors as one line on stderr."""

from __future__ import annotations

import os

# Read when pydantic is imported first, and inherited by the engine's process: logfire's plugin costs each a quarter of
# a second, and no model of ours is traced.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# isort: split

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import mlx_server
from mlx_server.cli.chat import chat
from mlx_server.cli.config import config
from mlx_server.cli.doctor import doctor
from mlx_server.cli.flags import with_settings
from mlx_server.cli.keys import keys
from mlx_server.cli.models import models
from mlx_server.cli.plan import plan
from mlx_server.cli.ps import ps
from mlx_server.cli.run import run
from mlx_server.cli.serve import serve
from mlx_server.cli.service import service
from mlx_server.cli.top import top
from mlx_server.core.errors import MlxServeError, SettingsError

EXIT_FAILED = 1
EXIT_USAGE = 2

app = typer.Typer(
    name="mlx-serve",
    help="A local LLM serving daemon on MLX with an OpenAI-compatible endpoint.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(with_settings(serve))
app.command("chat")(chat)
app.command("run")(run)
app.command("ps")(ps)
app.command("top")(top)
app.command("plan")(with_settings(plan))
app.command("doctor")(doctor)
app.add_typer(config)
app.add_typer(models)
app.add_typer(keys)
app.add_typer(service)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlx-serve {mlx_server.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit: 0 done, 1 failed, 2 misused (flags or settings), 130 interrupted.

    An error this project raises on purpose is one line on stderr (`test_error_is_one_line`); any other
    is a defect and keeps its traceback.
    """
    try:
        sys.exit(app(args=arguments, prog_name="mlx-serve"))
    except MlxServeError as error:
        typer.echo(f"mlx-serve: {error}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILED)
