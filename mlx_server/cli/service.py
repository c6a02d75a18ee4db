"""`mlx-serve service`: the daemon in the background, from login on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Annotated

import psutil
import typer

from mlx_server.cli.chat_backend import default_url
from mlx_server.cli.chat_client import ChatClient, ChatError, Health
from mlx_server.cli.flags import with_settings
from mlx_server.cli.ps import duration
from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import Settings, load_settings
from mlx_server.services.service.definition import SETTING_PREFIX, ServiceError, find_program, given_flags, make_spec
from mlx_server.services.service.detect import service_manager
from mlx_server.services.service.manager import ServiceManager, ServiceState

EXIT_STOPPED = 3
EXIT_NOT_INSTALLED = 4
"""As systemctl's status has them."""

_CONNECT_TIMEOUT_S = 1.0

service = typer.Typer(
    name="service",
    help="The daemon in the background, from login on: launchd on macOS, systemd on Linux.",
    no_args_is_help=True,
)


def install(context: typer.Context, settings: Settings) -> None:
    """Have the daemon started now and at every login. Run it again after an upgrade or to change settings.

    The service gets the flags given here, the MLX_SERVE_* variables of this shell, and the configuration file, which it
    reads at each start. It is restarted only if something has changed. Flags of an earlier install do not stay.
    """
    from mlx_server.api.access import check_exposure  # FastAPI: a second that --help need not wait

    if settings.port == 0:
        raise SettingsError("port = 0: a service needs a port that its clients know, from 1 to 65,535")
    check_exposure(settings)
    manager = service_manager()
    flags = {name: value for name in Settings.model_fields if (value := context.params.get(name)) is not None}
    config = context.params.get("config")
    spec = make_spec(find_program(), settings, flags, config, os.environ, manager.default_log)
    _refuse_taken_port(manager, settings)
    change = manager.install(spec)
    typer.echo(f"The service is {change}: {manager.definition}", err=True)
    typer.echo("'mlx-serve service status' shows how it does.", err=True)


service.command("install")(with_settings(install))


@service.command()
def uninstall() -> None:
    """Stop the daemon, and have it started no more. Models, settings and keys stay."""
    manager = service_manager()
    was_there = manager.uninstall()
    typer.echo("The service is removed." if was_there else "There is no service.", err=True)


@service.command()
def start() -> None:
    """Start the daemon, unless it runs."""
    manager = service_manager()
    if manager.state().pid is None and manager.installed() is not None:
        _refuse_taken_port(manager, _installed_settings(manager))
    manager.start()


@service.command()
def stop() -> None:
    """Stop the daemon until the next start or login. Answers that run may end, for drain_s at most."""
    service_manager().stop()


@service.command()
def restart() -> None:
    """Stop the daemon as 'stop' does, and start it again."""
    service_manager().restart()


@service.command()
def status() -> None:
    """Show whether the daemon runs, and how it does. Exits with 0 when it runs, 3 when not, 4 when not installed."""
    manager = service_manager()
    invocation = manager.installed()
    state = manager.state()
    figures = _no_service(manager) if invocation is None else _figures(manager, state)
    for name, value in figures.items():
        typer.echo(f"{name:<12}{value}")
    if state.pid is None:
        raise typer.Exit(EXIT_NOT_INSTALLED if invocation is None else EXIT_STOPPED)


@service.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with the lines to come, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=1_000_000, help="Lines to begin with.")] = 100,
) -> None:
    """Show what the daemon has logged."""
    manager = service_manager()
    if manager.installed() is None:
        raise ServiceError("the service is not installed, so it has no log")
    command = manager.show_log(_installed_settings(manager).log_file, lines, follow)
    try:
        os.execvp(command[0], command)  # noqa: S606 (no shell)
    except OSError as error:
        raise ServiceError(f"'{command[0]}' cannot be run: {error.strerror}") from error


def _no_service(manager: ServiceManager) -> dict[str, str]:
    return {"service": f"not installed under {manager.name}; 'mlx-serve service install'"}


def _figures(manager: ServiceManager, state: ServiceState) -> dict[str, str]:
    """What `status` shows."""
    rows = {"service": f"{'runs' if state.pid else 'does not run'} under {manager.name}"}
    if state.pid is not None:
        rows["process"] = f"{state.pid}{_uptime(state.pid)}"
    log_file = manager.default_log
    try:
        settings = _installed_settings(manager)
    except SettingsError as error:
        rows["settings"] = str(error)
    else:
        rows["health"] = _health_text(default_url(settings), state)
        log_file = settings.log_file or log_file
    if state.last_exit:
        rows["last exit"] = state.last_exit
    if state.restarts:
        rows["restarts"] = str(state.restarts)
    rows["log"] = "the journal: 'mlx-serve service logs'" if log_file is None else str(log_file)
    rows["definition"] = str(manager.definition)
    return rows


def _uptime(pid: int) -> str:
    try:
        return f", up {duration(time.time() - psutil.Process(pid).create_time())}"
    except psutil.Error:
        return ""


def _health_text(url: str, state: ServiceState) -> str:
    try:
        health = asyncio.run(_health(url))
    except ChatError as error:
        return str(error)
    if health is None:
        return f"nothing answers at {url}"
    if health.pid not in (0, state.pid):
        return f"another daemon (process {health.pid}) answers at {url}"
    model = f", model {health.model}" if health.model else ""
    reason = f": {health.reason}" if health.reason else ""
    return f"{health.status}{reason} ({url}{model})"


async def _health(url: str) -> Health | None:
    async with ChatClient(url) as client:
        return await client.health()


def _refuse_taken_port(manager: ServiceManager, settings: Settings) -> None:
    """Raise `ServiceError` when somebody else than this service listens where it would."""
    if not _is_listening(settings):
        return
    url = default_url(settings)
    state = manager.state()
    try:
        health = asyncio.run(_health(url))
    except ChatError:
        holder = "another program"
    else:
        if health is None:  # gone meanwhile
            return
        is_there = manager.installed() is not None and default_url(_installed_settings(manager)) == url
        if state.pid is not None and is_there and health.pid in (0, state.pid):
            return
        holder = f"another mlx-serve (process {health.pid})" if health.pid else "another mlx-serve"
    raise ServiceError(
        f"port {settings.port} of {settings.host} is taken by {holder}: stop that one, or give the service another "
        "port with 'mlx-serve service install --port NUMBER'"
    )


def _is_listening(settings: Settings) -> bool:
    host, _, _ = default_url(settings).removeprefix("http://").rpartition(":")
    with contextlib.suppress(OSError):
        socket.create_connection((host.strip("[]"), settings.port), _CONNECT_TIMEOUT_S).close()
        return True
    return False


def _installed_settings(manager: ServiceManager) -> Settings:
    """Those of the installed service, whatever this shell's variables say. Raises `SettingsError`."""
    invocation = manager.installed()
    if invocation is None:
        raise ServiceError("the service is not installed: 'mlx-serve service install'")
    config, flags = given_flags(invocation.command)
    with _variables(invocation.environment):
        return load_settings(config, **flags)


@contextlib.contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """The settings in this process's environment are those of `environment` meanwhile."""
    own = {name: value for name, value in os.environ.items() if name.startswith(SETTING_PREFIX)}
    others = {name: value for name, value in environment.items() if name.startswith(SETTING_PREFIX)}
    try:
        for name in own:
            del os.environ[name]
        os.environ.update(others)
        yield
    finally:
        for name in others:
            os.environ.pop(name, None)
        os.environ.update(own)
