"""Settings, keys, the address, and the service."""

from __future__ import annotations

import asyncio
import difflib
import os
import socket
import stat
from pathlib import Path

import psutil

from mlx_server.cli.chat_backend import default_url
from mlx_server.cli.chat_client import KEY_VARIABLE, ChatClient, ChatError, Health
from mlx_server.cli.checks.finding import Finding
from mlx_server.core.config_file import CONFIG_VARIABLE, default_config_path
from mlx_server.core.errors import MlxServeError, SettingsError
from mlx_server.core.settings import Settings
from mlx_server.services.service.detect import service_manager

_CONNECT_TIMEOUT_S = 2.0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_config_file(path: Path | None) -> Finding:
    """path: the file that was read and found legal; None for none."""
    if path is None:
        return Finding("settings", "ok", f"no file ({default_config_path()}); 'mlx-serve config init' writes one")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS_WRITE:
        text = f"others than its owner may change {path}"
        return Finding("settings", "warn", text, f"chmod go-w '{path}'")
    return Finding("settings", "ok", f"{path} is legal")


def check_variables() -> list[Finding]:
    """Variables with our prefix that mean nothing: a slip, most likely."""
    prefix = str(Settings.model_config["env_prefix"])
    known = {f"{prefix}{name.upper()}" for name in Settings.model_fields} | {CONFIG_VARIABLE, KEY_VARIABLE}
    findings = []
    for name in sorted(os.environ):
        if name.upper().startswith(prefix) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            fix = f"did you mean {near[0]}?" if near else "'mlx-serve config show --json' lists the variables"
            findings.append(Finding("environment", "warn", f"{name} is set, and no setting has that name", fix))
    return findings


def check_exposure(settings: Settings) -> Finding:
    """The keys' file, and whether a key is needed and there."""
    from mlx_server.api.access import check_exposure as check
    from mlx_server.services.keys import keys_path, read_keys

    try:
        check(settings)
        count = len(read_keys(keys_path(settings)))
    except SettingsError as error:
        return Finding("access", "fail", str(error), "as it says; then 'mlx-serve doctor' again")
    if count:
        return Finding("access", "ok", f"listens on {settings.host}; requests need one of {count} keys")
    return Finding("access", "ok", f"listens on {settings.host} for this machine alone; requests need no key")


def check_port(settings: Settings) -> Finding:
    """Who listens where the daemon would."""
    url = default_url(settings)
    if settings.port == 0:
        return Finding("port", "ok", "the system picks a free one at each start")
    try:
        health = asyncio.run(_health(url))
    except (ChatError, TimeoutError):
        text = f"port {settings.port} of {settings.host} is taken by {_holder(settings.port)}"
        return Finding("port", "fail", text, "stop that program, or choose another port: --port NUMBER")
    if health is not None:
        serves = f" and serves {health.model}" if health.model else ""
        process = f" (process {health.pid})" if health.pid else ""
        return Finding("port", "ok", f"an mlx-serve answers at {url}{process}{serves}: {health.status}")
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        text = f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}"
        return Finding("port", "fail", text, "choose another with --port NUMBER, or another --host")
    return Finding("port", "ok", f"{settings.port} is free; no daemon runs there")


async def _health(url: str) -> Health | None:
    async with asyncio.timeout(_CONNECT_TIMEOUT_S * 2), ChatClient(url) as client:
        return await client.health()


def _holder(port: int) -> str:
    """The program that listens there, as far as this user may know."""
    try:
        pids = {c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid}
        names = [f"{psutil.Process(pid).name()} (process {pid})" for pid in sorted(pids)]
    except psutil.Error:  # macOS tells root alone
        names = []
    return names[0] if names else "another program"


def check_service() -> Finding:
    """Whether the daemon is a service here, and how it does."""
    try:
        manager = service_manager()
        is_installed = manager.installed() is not None
        state = manager.state() if is_installed else None
    except MlxServeError as error:
        return Finding("service", "ok", f"not used: {error}")
    if state is None:
        return Finding("service", "ok", f"not installed; 'mlx-serve service install' has it started by {manager.name}")
    if state.pid is None:
        last = f"; it ended last with {state.last_exit}" if state.last_exit else ""
        fix = "'mlx-serve service start', and 'mlx-serve service logs' for why it stopped"
        return Finding("service", "warn", f"installed under {manager.name}, and does not run{last}", fix)
    return Finding("service", "ok", f"runs under {manager.name} (process {state.pid})")
