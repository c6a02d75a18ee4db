"""What the daemon and an engine's process say to each other: length-prefixed MessagePack over a Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from mlx_server.core.messages import EngineInfo, EngineStats, GenerateRequest, MemoryLevel, TokenDelta

MAX_FRAME_BYTES = 256 << 20
"""No honest frame is longer; a length above it means that the stream is out of step."""

_LENGTH_BYTES = 4


class _Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# ---- from the daemon -----------------------------------------------------------------------------


class Start(_Frame, frozen=True):
    """First frame: load a model. settings: `Settings` as JSON."""

    settings: bytes
    model_path: str
    model_id: str
    is_proven: bool


class Submit(_Frame, frozen=True):
    request: GenerateRequest


class Cancel(_Frame, frozen=True):
    request_id: str


class SetMemoryLevel(_Frame, frozen=True):
    level: MemoryLevel


class AskStats(_Frame, frozen=True):
    pass


class Stop(_Frame, frozen=True):
    """Free the model and exit."""


# ---- from the engine -----------------------------------------------------------------------------


class Progress(_Frame, frozen=True):
    """Of the load: stage, fraction in [0, 1]."""

    stage: str
    fraction: float


class Loaded(_Frame, frozen=True):
    info: EngineInfo


class LoadFailed(_Frame, frozen=True):
    """`ModelLoadError`; the process ends."""

    reason: str


class Deltas(_Frame, frozen=True):
    deltas: list[TokenDelta]


class Rows(_Frame, frozen=True):
    """Requests that take and give up a row; sent before the step that does it."""

    joined: list[str]
    left: list[str]


class Refused(_Frame, frozen=True):
    """A submitted request raised `RequestError`."""

    request_id: str
    message: str
    field: str | None
    code: str | None


class QueueFull(_Frame, frozen=True):
    """A submitted request raised `QueueFullError`."""

    request_id: str
    limit: int
    retry_after_s: int
    whose: str


class NoMemory(_Frame, frozen=True):
    """A submitted request raised `MemoryPressureError`."""

    request_id: str
    retry_after_s: int


class Heartbeat(_Frame, frozen=True):
    """While there is work: the event loop turns, and the oldest step in flight has been running for so long."""

    step_age_s: float


class Stats(_Frame, frozen=True):
    stats: EngineStats


class Ended(_Frame, frozen=True):
    """The engine has failed by itself; the process ends."""

    reason: str


ToEngine = Start | Submit | Cancel | SetMemoryLevel | AskStats | Stop
FromEngine = Progress | Loaded | LoadFailed | Deltas | Rows | Refused | QueueFull | NoMemory | Heartbeat | Stats | Ended

In = TypeVar("In")


class Connection(asyncio.Protocol, Generic[In]):
    """One end of the socket. on_frame gets every frame; on_lost is called once, when the other end is gone.

    decoder: of the frames that come in. Frames that `send` was given leave at once unless the socket is full, so
    what was sent before a crash can still be read after it.
    """

    def __init__(
        self, decoder: msgspec.msgpack.Decoder[In], on_frame: Callable[[In], None], on_lost: Callable[[], None]
    ) -> None:
        self._decoder = decoder
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH_BYTES:
            length = int.from_bytes(self._buffer[start : start + _LENGTH_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = start + _LENGTH_BYTES + length
            if len(self._buffer) < end:
                break
            frame = self._decoder.decode(bytes(self._buffer[start + _LENGTH_BYTES : end]))
            start = end
            self._on_frame(frame)
        del self._buffer[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()

    def send(self, frame: ToEngine | FromEngine) -> None:
        """Never blocks, never raises; what is sent to an end that is gone is lost."""
        if self._transport is None or self._transport.is_closing():
            return
        body = self._encoder.encode(frame)
        self._transport.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    def close(self) -> None:
        """After what was sent has left."""
        if self._transport is not None:
            self._transport.close()


def decoder_of_engine() -> msgspec.msgpack.Decoder[ToEngine]:
    """Of what an engine gets."""
    return msgspec.msgpack.Decoder(ToEngine)


def decoder_of_daemon() -> msgspec.msgpack.Decoder[FromEngine]:
    """Of what the daemon gets."""
    return msgspec.msgpack.Decoder(FromEngine)
