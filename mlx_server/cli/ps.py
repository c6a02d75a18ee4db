"""`mlx-serve ps`: the daemon that runs, and what it holds."""

from __future__ import annotations

import asyncio

import httpx2
import msgspec
import psutil
import typer

from mlx_server.cli.chat_backend import default_url
from mlx_server.cli.chat_client import KEY_VARIABLE, ChatClient, ChatError, Health, is_loopback
from mlx_server.cli.options import Json, Key, Url
from mlx_server.cli.output import facts_table, print_table
from mlx_server.cli.serve import gigabytes
from mlx_server.core.settings import load_settings


class Process(msgspec.Struct, frozen=True):
    """rss_bytes: resident memory; None where this machine does not say."""

    pid: int
    rss_bytes: int | None


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """What `ps --json` prints. engine: None where it has no process of its own, or none yet."""

    url: str
    status: str
    reason: str
    model: str
    version: str
    uptime_s: float
    daemon: Process
    engine: Process | None
    max_model_len: int | None
    running: int | None
    waiting: int | None


def ps(url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show the daemon that runs: model, processes, memory and requests. Exits with 1 when there is none."""
    url = url or default_url(load_settings())
    found = about_daemon(url, asyncio.run(running_daemon(url, key)))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    print_table(facts_table(_rows(found)))


async def running_daemon(url: str, key: str | None) -> Health:
    """What the daemon at `url` says of itself to `key`. Raises `ChatError`, with what to do, when that is nothing."""
    async with ChatClient(url, key=key) as client:
        health = await client.health()
    if health is None:
        raise ChatError(f"no daemon answers at {url}; 'mlx-serve serve' starts one")
    if not health.version:
        raise ChatError(f"the daemon at {url} is {health.status}, and needs an API key to say more: {KEY_VARIABLE}")
    return health


def about_daemon(url: str, health: Health) -> Daemon:
    """`health` with the memory of the processes, which only this machine's are asked for."""
    is_here = is_loopback(httpx2.URL(url).host)
    stats = health.stats
    engine = _process(stats.pid, is_here) if stats is not None and stats.pid else None
    return Daemon(
        url=url,
        status=health.status,
        reason=health.reason,
        model=health.model,
        version=health.version,
        uptime_s=health.uptime_s,
        daemon=_process(health.pid, is_here),
        engine=engine,
        max_model_len=health.max_model_len,
        running=stats.running if stats else None,
        waiting=stats.waiting if stats else None,
    )


def _process(pid: int, is_here: bool) -> Process:
    try:
        return Process(pid, psutil.Process(pid).memory_info().rss if is_here else None)
    except psutil.Error:
        return Process(pid, None)


def duration(seconds: float) -> str:
    """The two largest units: '3 d 4 h', '2 h 5 min', '41 s'."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s" if minutes else f"{int(seconds)} s"


def _rows(daemon: Daemon) -> dict[str, str]:
    context = "" if daemon.max_model_len is None else f", {daemon.max_model_len:,} tokens of context"
    processes = [_shown("daemon", daemon.daemon)] + ([_shown("engine", daemon.engine)] if daemon.engine else [])
    rows = {
        "model": f"{daemon.model}{context}",
        "status": daemon.status + (f": {daemon.reason}" if daemon.reason else ""),
        "base URL": f"{daemon.url}/v1",
        "process": ", ".join(processes),
        "up": f"{duration(daemon.uptime_s)}, mlx-serve {daemon.version}",
    }
    if daemon.running is not None:
        rows["requests"] = f"{daemon.running} running, {daemon.waiting} waiting"
    return rows


def _shown(name: str, process: Process) -> str:
    memory = "" if process.rss_bytes is None else f" ({gigabytes(process.rss_bytes)})"
    return f"{name} {process.pid}{memory}"
