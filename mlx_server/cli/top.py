"""`mlx-serve top`: what the daemon does, once a second, in the terminal."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console

from mlx_server.cli.chat_backend import default_url
from mlx_server.cli.options import Key, Url
from mlx_server.cli.run import exit_codes
from mlx_server.core.settings import load_settings


def top(
    url: Url = None,
    key: Key = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit, for scripts.")] = False,
) -> None:
    """Watch the daemon: memory, KV pool, speed, queues, live requests, recent errors. q leaves."""
    console = Console()
    if not once and not (console.is_terminal and sys.stdin.isatty()):
        raise typer.BadParameter("a terminal is needed; --once prints one frame to anything")
    from mlx_server.cli.top_screen import TopScreen  # what the feed needs, other commands need not wait for

    view = TopScreen(url or default_url(load_settings()), key, console)
    with exit_codes():
        asyncio.run(view.once() if once else view.run())
