"""macOS's events about memory: a dispatch source, through ctypes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from mlx_server.services.memory.libsystem import libsystem

_NORMAL, _WARN, _CRITICAL = 0x01, 0x02, 0x04
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_handlers: list[object] = []
"""Never freed: a thread of libdispatch may still be in one after its source was cancelled."""


class PressureEvents:
    """Calls `on_event` on the running event loop when the kernel's level of memory pressure changes.

    Raises `OSError` where there is no such source.
    """

    def __init__(self, on_event: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def on_change(context: int | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(on_event)

        library = libsystem()
        try:
            self._bind(library)
            kind = ctypes.addressof(ctypes.c_char.in_dll(library, "_dispatch_source_type_memorypressure"))
        except (AttributeError, ValueError) as error:
            raise OSError(f"libdispatch lacks something: {error}") from error
        queue = library.dispatch_get_global_queue(0, 0)
        self._library = library
        self._source: int | None = library.dispatch_source_create(kind, 0, _NORMAL | _WARN | _CRITICAL, queue)
        if self._source is None:
            raise OSError("libdispatch has made no source")
        handler = _Handler(on_change)
        _handlers.append(handler)
        library.dispatch_source_set_event_handler_f(self._source, handler)
        library.dispatch_resume(self._source)

    def close(self) -> None:
        """Idempotent."""
        if self._source is not None:
            self._library.dispatch_source_cancel(self._source)
            self._library.dispatch_release(self._source)
            self._source = None

    @staticmethod
    def _bind(library: Any) -> None:
        pointer, word = ctypes.c_void_p, ctypes.c_ulong
        library.dispatch_get_global_queue.restype = pointer
        library.dispatch_get_global_queue.argtypes = (ctypes.c_long, word)
        library.dispatch_source_create.restype = pointer
        library.dispatch_source_create.argtypes = (pointer, word, word, pointer)
        library.dispatch_source_set_event_handler_f.restype = None
        library.dispatch_source_set_event_handler_f.argtypes = (pointer, _Handler)
        for name in ("dispatch_resume", "dispatch_source_cancel", "dispatch_release"):
            function = getattr(library, name)
            function.restype = None
            function.argtypes = (pointer,)
