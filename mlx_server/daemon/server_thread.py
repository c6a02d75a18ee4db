"""The daemon in a thread of another process, on a free loopback port."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

from mlx_server.core.errors import MlxServeError
from mlx_server.core.settings import Settings
from mlx_server.daemon.loading import MakeEngine
from mlx_server.daemon.server import serve

_STOP_MARGIN_S = 15.0


class ServerThread:
    """A context manager: entering it waits until the model answers, leaving it stops the server.

    `start`, `wait_ready` and `stop` do the same in steps. All methods are for the owner's thread.
    """

    def __init__(self, settings: Settings, make_engine: MakeEngine) -> None:
        self._settings = settings.model_copy(update={"host": "127.0.0.1", "port": 0})
        self._make_engine = make_engine
        self._url: str | None = None
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: asyncio.Event | None = None
        self._listening = threading.Event()
        self._settled = threading.Event()  # ready, or ended
        self._thread = threading.Thread(target=self._run, name="mlx-serve-http", daemon=True)

    @property
    def url(self) -> str:
        """Base URL without `/v1`; known from `start` on."""
        if self._url is None:
            raise RuntimeError("the server has not been started")
        return self._url

    def start(self) -> None:
        """Return once the port listens; the model loads behind it. Raises what `serve` raises before that."""
        self._thread.start()
        self._listening.wait()
        self._raise_error()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Return once the model answers. Raises `ModelLoadError`, or `TimeoutError`."""
        if not self._settled.wait(timeout_s):
            raise TimeoutError(f"the model was not ready after {timeout_s} s")
        self._raise_error()

    def stop(self) -> None:
        """Stop and wait for the end. Idempotent. Raises when the server does not end."""
        loop, event = self._loop, self._stop_event
        if loop is None or event is None:
            return
        if self._thread.is_alive() and not loop.is_closed():
            loop.call_soon_threadsafe(event.set)
        self._thread.join(self._settings.drain_s + _STOP_MARGIN_S)
        if self._thread.is_alive():
            raise MlxServeError("the server thread did not end")

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the thread ends here; its owner gets the error
            self._error = error
        finally:
            self._listening.set()
            self._settled.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_event = asyncio.Event()
        await serve(
            self._settings,
            self._make_engine,
            lambda url: self._settled.set(),
            on_listening=self._note_url,
            stop=self._stop_event,
        )

    def _note_url(self, url: str) -> None:
        self._url = url
        self._listening.set()
