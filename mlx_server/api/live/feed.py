"""The facts as server-sent events: one sampler for all who watch, and nothing computed while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from mlx_server.api.access import Caller
from mlx_server.api.errors import OverloadedError
from mlx_server.api.live.facts import Facts, History, Point
from mlx_server.api.live.sampler import Sampler
from mlx_server.api.serving import ServingState
from mlx_server.core.messages import Priority

INTERVAL_S = 1.0
MAX_WATCHERS = 16
WATCH_S = 600.0
"""A feed ends after this long, and its watcher asks again: with a key that is no longer valid, in vain."""

_POINT_FIELDS = tuple(msgspec.structs.fields(Point))


class Feed:
    """Owned by the event loop. A watcher that reads slowly misses samples; nobody waits for it."""

    def __init__(self, serving: ServingState) -> None:
        self._serving = serving
        self._sampler = Sampler(serving)
        self._watchers = 0
        self._sampling: asyncio.Task[None] | None = None
        self._next: asyncio.Future[Facts] | None = None

    async def watch(self, caller: Caller) -> AsyncGenerator[bytes, None]:
        """An event 'history', then one 'facts' a second, with the requests that `caller` may see.

        Ends after `WATCH_S`, and when the daemon is shutting down. Raises `OverloadedError` for one watcher too many.
        """
        if self._watchers >= MAX_WATCHERS:
            raise OverloadedError(f"{MAX_WATCHERS} dashboards are open already; close one")
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + WATCH_S
        self._watchers += 1
        try:
            yield _event("history", self._history())
            while loop.time() < ends_s:
                facts = await asyncio.shield(self._newest())
                yield _event("facts", seen_by(caller, facts))
                if self._serving.draining:
                    return
        finally:
            self._watchers -= 1
            if self._watchers == 0 and self._sampling is not None:
                self._sampling.cancel()
                self._sampling = None

    def _history(self) -> History:
        fields = tuple(field.name for field in _POINT_FIELDS)
        return History(fields=fields, points=tuple(self._sampler.history))

    def _newest(self) -> asyncio.Future[Facts]:
        """The next sample, for all who wait for it."""
        if self._sampling is None:
            self._next = asyncio.get_running_loop().create_future()
            self._sampling = asyncio.create_task(self._sample_on(self._next))
        if self._next is None:
            raise RuntimeError("the sampler runs without a sample to come")
        return self._next

    async def _sample_on(self, coming: asyncio.Future[Facts]) -> None:
        """Sample once a second until cancelled; a failure ends every feed with its error."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                due_s = loop.time() + INTERVAL_S
                facts = await self._sampler.sample()
                done, coming = coming, loop.create_future()
                self._next = coming
                done.set_result(facts)
                await asyncio.sleep(due_s - loop.time())
        except Exception as error:  # noqa: BLE001 - the watchers get it
            self._sampling = None
            coming.set_exception(error)


def sees(caller: Caller, key_id: str) -> bool:
    """Whether `caller` may see, and end, what the API key `key_id` asked for: its own; with tier high, or where no
    key is needed, everything."""
    return not caller.key_id or caller.tier is Priority.HIGH or caller.key_id == key_id


def seen_by(caller: Caller, facts: Facts) -> Facts:
    """The facts without other keys' requests and errors."""
    requests = tuple(request for request in facts.requests if sees(caller, request.key_id))
    errors = tuple(error for error in facts.errors if sees(caller, error.key_id))
    hidden = len(facts.requests) - len(requests)
    return msgspec.structs.replace(facts, requests=requests, errors=errors, hidden_requests=hidden)


def _event(name: str, value: msgspec.Struct) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))
