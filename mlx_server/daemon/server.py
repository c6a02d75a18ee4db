"""The daemon: uvicorn on a bound socket, the model behind it, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any

import uvicorn

from mlx_server.api.serving import ServingState
from mlx_server.core.errors import EngineDeadError, EngineNotReadyError, SettingsError
from mlx_server.core.settings import Settings
from mlx_server.daemon.app import create_app
from mlx_server.daemon.loading import MakeEngine, ModelLoader
from mlx_server.telemetry.traces import setup_tracing

logger = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long running answers may go on after a stop was asked for."""
_LAST_RESORT_S = 3.0  # then uvicorn cancels what is left
_TICK_S = 1.0  # of the idle daemon; refreshes the Date header
_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they close first
_SHUTTING_DOWN = "the daemon is shutting down"

Notify = Callable[[str], None]


async def serve(
    settings: Settings,
    make_engine: MakeEngine,
    on_ready: Notify | None = None,
    *,
    on_listening: Notify | None = None,
    stop: asyncio.Event | None = None,
    grace_s: float = GRACE_S,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`. The callbacks get the base URL, without `/v1`.

    The port listens at once; chats get a 503 with Retry-After until the model is ready. Raises
    `SettingsError` when the port cannot be bound, `ModelLoadError` when the model cannot be loaded,
    `EngineDeadError` when the engine dies: a port in front of a dead engine serves nobody.
    Running answers may end for `grace_s`; a second signal does not wait (`test_server.py`).
    """
    setup_tracing(settings.tracing)
    stop = stop or asyncio.Event()
    hurry = asyncio.Event()
    serving = ServingState(settings)
    loader = ModelLoader(serving, make_engine)
    listener = bind(settings)
    url = base_url(listener)
    server = _Server(_config(serving, grace_s), serving)
    with _signals(stop, hurry):
        http = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            _notify(on_listening, url)
            logger.info("listening on %s", url)
            if await _until_loaded(loader, stop, http):
                _notify(on_ready, url)
                await _wait_any(stop, http)
                if not stop.is_set():
                    serving.loaded()  # raises why the engine died
        finally:
            serving.stopped = _SHUTTING_DOWN
            await _shut_down(server, http, loader, hurry, grace_s)


def bind(settings: Settings) -> socket.socket:
    """A bound TCP socket. Raises `SettingsError`."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError(f"cannot listen on {settings.host} port {settings.port}: {reason}") from error
    return listener


def base_url(listener: socket.socket) -> str:
    """URL of a bound socket; a wildcard address is shown as loopback."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers and ten wake-ups a second; it ends when the engine has died."""

    def __init__(self, config: uvicorn.Config, serving: ServingState) -> None:
        super().__init__(config)
        self._serving = serving
        self._exit_asked = asyncio.Event()

    def ask_exit(self) -> None:
        self.should_exit = True
        self._exit_asked.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0) and not self._engine_is_dead():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exit_asked.wait(), _TICK_S)

    def _engine_is_dead(self) -> bool:
        try:
            self._serving.loaded()
        except EngineDeadError:
            return True
        except EngineNotReadyError:
            return False
        return False

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _config(serving: ServingState, grace_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(serving),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(grace_s + _LAST_RESORT_S),
    )


async def _until_loaded(loader: ModelLoader, stop: asyncio.Event, http: asyncio.Future[None]) -> bool:
    """Whether the model is ready; False when a stop came first. Raises the load's error."""
    loading = asyncio.ensure_future(loader.load())
    try:
        await _wait_any(stop, loading, http)
        if not loading.done():
            return False
        loading.result()
        return True
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


async def _wait_any(event: asyncio.Event, *futures: asyncio.Future[None]) -> None:
    """Return when the event is set or a future is done."""
    waiter = asyncio.ensure_future(event.wait())
    try:
        waits: set[asyncio.Future[Any]] = {waiter, *futures}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def _shut_down(
    server: _Server, http: asyncio.Future[None], loader: ModelLoader, hurry: asyncio.Event, grace_s: float
) -> None:
    """Stop accepting, wait for running answers, then end them with an error event, then free the model."""
    server.ask_exit()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await _wait_any(hurry, http)
    await loader.close()
    await http


@contextlib.contextmanager
def _signals(stop: asyncio.Event, hurry: asyncio.Event) -> Generator[None, None, None]:
    """SIGTERM and SIGINT set `stop`, then `hurry`. Outside the main thread nothing is installed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _notify(callback: Notify | None, url: str) -> None:
    if callback is not None:
        callback(url)
