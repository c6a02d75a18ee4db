"""The daemon a chat talks to: one that runs already, or one started for this chat alone."""

from __future__ import annotations

import asyncio
import ipaddress
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mlx_server.cli.chat_client import ChatClient, ChatError, Health
from mlx_server.cli.loading_bar import LoadingBar, log_to
from mlx_server.cli.serve import EngineMaker
from mlx_server.core.settings import Settings, load_settings
from mlx_server.services.keys import add_key

LOADING_POLL_S = 0.25


ANY_MODEL = "default"
"""The name under which every daemon serves its model."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A daemon: its base URL, and the API key to show it, or None."""

    url: str
    key: str | None

    def client(self) -> ChatClient:
        return ChatClient(self.url, key=self.key)


@contextmanager
def chat_backend(url: str | None, model: str | None, key: str | None, console: Console) -> Iterator[Backend]:
    """Yield a daemon that is ready, takes `key`, and serves `model` (any, when that is None).

    A given `url` must answer. Without one, the default address is tried, and when nothing there serves
    the model an engine is started in this process and stopped at the end. Raises `ChatError`, and what
    `load_settings` and `ServerThread` raise.
    """
    settings = load_settings(model=model)
    found_at = Backend(url or default_url(settings), key)
    health = asyncio.run(_ready(found_at, console))
    if health is not None and asyncio.run(_serves(found_at, model or ANY_MODEL)):
        yield found_at
        return
    if url is not None:
        found = "nothing answers there" if health is None else f"it serves {health.model!r}, not {model!r}"
        raise ChatError(f"{url} cannot be used: {found}")
    if health is not None:
        console.print(f"The daemon at {found_at.url} serves {health.model!r}, not {model!r}.", style="yellow")
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
def _own_daemon(settings: Settings, console: Console) -> Iterator[Backend]:
    """A daemon that takes one key, which only this chat has, whatever other keys there are."""
    from mlx_server.daemon.server_thread import ServerThread

    log_to(console, "warning")
    with tempfile.TemporaryDirectory(prefix="mlx-serve-") as folder:
        keys_file = Path(folder) / "keys.json"
        _, key = add_key(keys_file, "chat")
        own = settings.model_copy(update={"keys_file": keys_file})
        with LoadingBar(console, own.model) as bar, ServerThread(own, EngineMaker(bar.update)) as server:
            bar.close()
            console.print(f"Started {own.model} for this chat alone, at {server.url}.", style="dim")
            yield Backend(server.url, key)


async def _ready(backend: Backend, console: Console) -> Health | None:
    """The daemon's health once its model answers; None when nothing listens. Raises `ChatError`."""
    async with backend.client() as client:
        health = await client.health()
        if health is None or health.status == "ok":
            return health
        with LoadingBar(console, health.model) as bar:
            while health is not None and health.status in ("loading", "restarting"):
                bar.update(health.stage, health.progress)
                await asyncio.sleep(LOADING_POLL_S)
                health = await client.health()
    if health is None or health.status != "ok":
        reason = health.reason if health else "it went away while loading"
        raise ChatError(f"the daemon at {backend.url} cannot answer: {reason}")
    return health


async def _serves(backend: Backend, model: str) -> bool:
    async with backend.client() as client:
        return await client.serves(model)
