"""The daemon a chat talks to: one that runs already, or one started for this chat alone."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from mlx_server.cli.chat_client import ChatClient, ChatError, Health
from mlx_server.cli.loading_bar import LoadingBar, log_to
from mlx_server.cli.serve import EngineMaker
from mlx_server.core.settings import Settings, load_settings

LOADING_POLL_S = 0.25


@contextmanager
def chat_backend(url: str | None, model: str | None, console: Console) -> Iterator[str]:
    """Yield the base URL of a daemon that is ready and serves `model` (any, when that is None).

    A given `url` must answer. Without one, the default address is tried, and when nothing there serves
    the model an engine is started in this process and stopped at the end. Raises `ChatError`, and what
    `load_settings` and `ServerThread` raise.
    """
    settings = load_settings(model=model)
    address = url or default_url(settings)
    health = asyncio.run(_ready(address, console))
    if health is not None and (model is None or asyncio.run(_serves(address, model))):
        yield address
        return
    if url is not None:
        found = "nothing answers there" if health is None else f"it serves {health.model!r}, not {model!r}"
        raise ChatError(f"{url} cannot be used: {found}")
    if health is not None:
        console.print(f"The daemon at {address} serves {health.model!r}, not {model!r}.", style="yellow")
    with _own_daemon(settings, console) as own:
        yield own


def default_url(settings: Settings) -> str:
    """Where `mlx-serve serve` with these settings would answer."""
    host = settings.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{settings.port}"
    if address.is_unspecified:
        host = "127.0.0.1"
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


@contextmanager
def _own_daemon(settings: Settings, console: Console) -> Iterator[str]:
    from mlx_server.daemon.server_thread import ServerThread

    log_to(console, "warning")
    with LoadingBar(console, settings.model) as bar, ServerThread(settings, EngineMaker(bar.update)) as server:
        bar.close()
        console.print(f"Started {settings.model} for this chat alone, at {server.url}.", style="dim")
        yield server.url


async def _ready(url: str, console: Console) -> Health | None:
    """The daemon's health once its model answers; None when nothing listens. Raises `ChatError`."""
    async with ChatClient(url) as client:
        health = await client.health()
        if health is None or health.status == "ok":
            return health
        with LoadingBar(console, health.model) as bar:
            while health is not None and health.status == "loading":
                bar.update(health.stage, health.progress)
                await asyncio.sleep(LOADING_POLL_S)
                health = await client.health()
    if health is None or health.status != "ok":
        reason = health.reason if health else "it went away while loading"
        raise ChatError(f"the daemon at {url} cannot answer: {reason}")
    return health


async def _serves(url: str, model: str) -> bool:
    async with ChatClient(url) as client:
        return await client.serves(model)
