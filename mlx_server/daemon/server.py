"""The daemon: uvicorn on a bound socket, the model behind it, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from mlx_server.api.access import check_exposure
from mlx_server.api.serving import ServingState
from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import Settings
from mlx_server.daemon.app import create_app
from mlx_server.daemon.http_server import HttpServer
from mlx_server.daemon.loading import MakeEngine, ModelLoader
from mlx_server.daemon.pressure import PressureWatch
from mlx_server.services.memory.source import MemorySource, system_source
from mlx_server.telemetry.traces import setup_tracing

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 3.0  # for the error events of answers that were ended, and for clients to read them
_SEND_BUFFER_BYTES = 256 << 10  # the kernel would let one unread stream grow to megabytes

Notify = Callable[[str], None]


async def serve(
    settings: Settings,
    make_engine: MakeEngine,
    on_ready: Notify | None = None,
    *,
    on_listening: Notify | None = None,
    stop: asyncio.Event | None = None,
    memory_source: MemorySource | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`. The callbacks get the base URL, without `/v1`.

    The port listens at once; chats get a 503 with Retry-After until the model is ready. Raises `SettingsError` when the
    port cannot be bound, or would be open to others without a key, `ModelLoadError` when the model cannot be loaded,
    `EngineDeadError` when the engine has given up: a port in front of a dead engine serves nobody.
    Running answers may end for `drain_s`; a second signal does not wait (`test_serve_command.py`).
    memory_source: by default the machine.
    """
    setup_tracing(settings.tracing)
    check_exposure(settings)
    stop = stop or asyncio.Event()
    hurry = asyncio.Event()
    serving = ServingState(settings)
    loader = ModelLoader(serving, make_engine)
    listener = bind(settings)
    url = base_url(listener)
    http = HttpServer(create_app(serving), settings)
    await http.start(listener)
    pressure = PressureWatch(serving, memory_source or system_source())
    with _signals(stop, hurry):
        try:
            pressure.start()
            _notify(on_listening, url)
            logger.info("listening on %s", url)
            if await _until_loaded(loader, stop):
                _notify(on_ready, url)
                await _either(stop, serving.engine_died)
                if not stop.is_set():
                    serving.loaded()  # raises why the engine died
        finally:
            serving.draining = True
            await _shut_down(http, loader, hurry, settings.drain_s)
            await pressure.stop()


def bind(settings: Settings) -> socket.socket:
    """A bound TCP socket. Raises `SettingsError`."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
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


async def _until_loaded(loader: ModelLoader, stop: asyncio.Event) -> bool:
    """Whether the model is ready; False when a stop came first. Raises the load's error."""
    loading = asyncio.ensure_future(loader.load())
    try:
        await _first(stop.wait(), loading)
        if not loading.done():
            return False
        loading.result()
        return True
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


async def _either(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    await _first(*(event.wait() for event in events))


async def _shut_down(http: HttpServer, loader: ModelLoader, hurry: asyncio.Event, drain_s: float) -> None:
    """Stop accepting, wait for running answers, then end them with an error event, then free the model."""
    http.stop_accepting()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await _first(hurry.wait(), http.answered())
    await loader.close()
    await http.close(_LAST_WORDS_S)


async def _first(*waits: Coroutine[Any, Any, object] | asyncio.Future[None]) -> None:
    """Return when the first is done. Coroutines that are not are cancelled, futures go on."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


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
