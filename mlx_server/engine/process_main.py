"""The engine's process: one model behind one socket. Its life depends on that socket.

Started by the daemon as `python -m mlx_server.engine.process_main --fd N`; N is its end of a socket pair, which has
no name in the file system and so no other user. When the daemon is gone, however it went, so is this process.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mlx_server.core.errors import (
    EngineDeadError,
    EngineNotReadyError,
    MemoryPressureError,
    ModelLoadError,
    QueueFullError,
    RequestError,
)
from mlx_server.core.messages import EngineStats, GenerateRequest, TokenDelta
from mlx_server.core.settings import Settings
from mlx_server.engine import frames
from mlx_server.engine.host import EngineHost, MakeExecutor, load_with_mlx
from mlx_server.telemetry.logs import setup_logging

HEARTBEAT_S = 1.0
"""Between two heartbeats while there is work. Without work there are none."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

Load = Callable[[Settings, Path, str, bool], MakeExecutor]
"""Makes what loads the model: settings, folder, id, and whether its parity was probed before."""


class EngineProcessMain:
    """Frames in, calls of an `EngineHost`; deltas out, frames.

    load, clock: see `main`.
    """

    def __init__(self, load: Load, clock: Callable[[], float]) -> None:
        self._load = load
        self._clock = clock
        self._host: EngineHost | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._done = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._connection = frames.Connection(frames.decoder_of_engine(), self._take, self._lost)

    async def run(self, end: socket.socket) -> None:
        """Until `Stop`."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self._connection, sock=end)
        await self._done.wait()
        if self._host is not None:
            await self._host.close()
        self._connection.close()

    def _take(self, frame: frames.ToEngine) -> None:
        match frame:
            case frames.Submit(request):
                self._submit(request)
            case frames.Cancel(request_id):
                self._running.cancel(request_id)
            case frames.SetMemoryLevel(level):
                self._running.set_memory_level(level)
            case frames.AskStats():
                self._connection.send(frames.Stats(self._stats()))
            case frames.Start():
                self._starting = asyncio.create_task(self._start(frame))
            case frames.Stop():
                self._done.set()

    @property
    def _running(self) -> EngineHost:
        if self._host is None:
            raise EngineNotReadyError()
        return self._host

    async def _start(self, frame: frames.Start) -> None:
        try:
            info = await self._host_for(frame).start()
        except EngineDeadError:
            self._done.set()
        except Exception as error:  # noqa: BLE001 - whatever it is, the daemon must not wait for this process
            known = isinstance(error, ModelLoadError)
            self._connection.send(frames.LoadFailed(str(error) if known else f"{type(error).__name__}: {error}"))
            self._done.set()
        else:
            self._connection.send(frames.Loaded(info))

    def _host_for(self, frame: frames.Start) -> EngineHost:
        settings = Settings.model_validate_json(frame.settings)
        setup_logging(settings.log_level, log_format=settings.log_format)
        make_executor = self._load(settings, Path(frame.model_path), frame.model_id, frame.is_proven)
        self._host = EngineHost(
            settings, make_executor, self._deliver, self._progress, self._ended, self._note_rows, self._clock
        )
        self._beat()
        return self._host

    def _submit(self, request: GenerateRequest) -> None:
        try:
            self._running.submit(request)
        except QueueFullError as error:
            self._connection.send(frames.QueueFull(request.request_id, error.limit, error.retry_after_s, error.whose))
        except MemoryPressureError as error:
            self._connection.send(frames.NoMemory(request.request_id, error.retry_after_s))
        except RequestError as error:
            self._connection.send(frames.Refused(request.request_id, error.message, error.field, error.code))
        else:
            self._beat()

    def _stats(self) -> EngineStats:
        return msgspec.structs.replace(self._running.stats(), pid=os.getpid())

    # ---- callbacks of the host -------------------------------------------------------------------

    def _deliver(self, deltas: Sequence[TokenDelta]) -> None:
        self._connection.send(frames.Deltas(list(deltas)))

    def _note_rows(self, joined: Sequence[str], left: Sequence[str]) -> None:
        self._connection.send(frames.Rows(list(joined), list(left)))

    def _progress(self, stage: str, fraction: float) -> None:
        self._connection.send(frames.Progress(stage, fraction))

    def _ended(self, reason: str) -> None:
        self._connection.send(frames.Ended(reason))
        self._done.set()

    def _beat(self) -> None:
        """Send a heartbeat now and every `HEARTBEAT_S`, until there is nothing to do."""
        if self._beating is None:
            self._beat_again()

    def _beat_again(self) -> None:
        self._beating = None
        host = self._running
        if not host.is_idle:
            self._connection.send(frames.Heartbeat(host.step_age_s()))
            self._beating = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat_again)

    def _lost(self) -> None:
        """The daemon is gone, or has closed its end after `Stop`. There is nobody to do anything for."""
        if not self._done.is_set():
            os._exit(1)


def main(
    arguments: Sequence[str] | None = None,
    load: Load = load_with_mlx,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Entry point of the process.

    load: for tests, which load something else or put faults in front of it. clock: of the scheduler's queue.
    """
    parser = argparse.ArgumentParser(description="The engine's process; the daemon starts it.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket")
    parser.add_argument("--parent", type=int, required=True, help="process id of the daemon")
    given = parser.parse_args(arguments)
    _die_with(given.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which stops this process in order
    end = socket.socket(fileno=given.fd)
    asyncio.run(EngineProcessMain(load, clock).run(end))


def _die_with(parent: int) -> None:
    """Where the kernel offers it, be killed when the daemon dies, even if this process hangs by then.

    Elsewhere the end of the socket tells, which a process that hangs does not read.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    main()
