"""The requests that are being answered: who asked, how far they are, and how to end one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from mlx_server.api.errors import RefusedError
from mlx_server.chat.generation import TextDelta
from mlx_server.core.messages import Priority


class CancelledRequestError(RefusedError):
    """Somebody ended the request on the dashboard. A 400: clients repeat most other statuses by themselves."""

    def __init__(self) -> None:
        super().__init__(400, "the request was cancelled on the dashboard", code="request_cancelled")


@dataclass(slots=True)
class LiveRequest:
    """One request with all its choices. Owned by the event loop.

    started_s, first_token_s: of `time.perf_counter`. generated, cached: tokens by choice.
    """

    id: str
    key_id: str
    priority: Priority
    model: str
    prompt_tokens: int
    choices: int
    started_s: float
    first_token_s: float | None = None
    generated: dict[int, int] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    cancelled: bool = False
    pull: asyncio.Timeout | None = None  # around the wait for the next delta, while there is one


class LiveRequests:
    """Every request between its first pull and its end. Owned by the event loop."""

    def __init__(self) -> None:
        self._alive: dict[str, LiveRequest] = {}

    def all(self) -> list[LiveRequest]:
        """Oldest first."""
        return list(self._alive.values())

    def get(self, request_id: str) -> LiveRequest | None:
        return self._alive.get(request_id)

    def cancel(self, request: LiveRequest) -> None:
        """End it: whoever reads its deltas gets `CancelledRequestError`, at once or at the next pull."""
        request.cancelled = True
        if request.pull is not None:
            request.pull.reschedule(asyncio.get_running_loop().time())

    async def track(
        self, request: LiveRequest, deltas: AsyncGenerator[tuple[int, TextDelta], None]
    ) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """The same deltas; meanwhile the request is listed, and can be cancelled.

        `deltas` is closed in the end, however that comes. Raises `CancelledRequestError`.
        """
        self._alive[request.id] = request
        try:
            async with aclosing(deltas):
                while (item := await _pull(request, deltas)) is not None:
                    _note(request, *item)
                    yield item
        finally:
            del self._alive[request.id]


def _note(request: LiveRequest, index: int, delta: TextDelta) -> None:
    request.generated[index] = delta.completion_tokens
    request.cached[index] = delta.cached_tokens
    if request.first_token_s is None and delta.completion_tokens:
        request.first_token_s = time.perf_counter()


async def _pull(
    request: LiveRequest, deltas: AsyncGenerator[tuple[int, TextDelta], None]
) -> tuple[int, TextDelta] | None:
    """None at the end."""
    if request.cancelled:
        raise CancelledRequestError
    try:
        async with asyncio.timeout(None) as request.pull:
            return await anext(deltas, None)
    except TimeoutError as error:
        if not request.cancelled:
            raise
        raise CancelledRequestError from error
    finally:
        request.pull = None
