"""The client's side of requests: what was asked, what has come, and how to go on after an interruption.

An engine may be gone in the middle of an answer, and a client may stop reading one. In both cases the request is
submitted again with the tokens generated so far, as a new attempt; whoever reads the stream sees a pause and then the
text it would have got.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable

from msgspec.structs import replace

from mlx_server.core.errors import MlxServeError, RequestError
from mlx_server.core.messages import FinishReason, GenerateRequest, TokenDelta

PAUSE_AT = 256
"""Deltas that nobody has read after which a request gives its row up until they have been."""


class TokenStream:
    """One request. `tokens` are those taken in so far; `attempt` is the id it has in the engine now, or None."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.tokens: list[int] = list(request.generated_token_ids)
        self.attempt: str | None = None
        self.attempts = 0
        self.is_paused = False
        self.is_finished = False
        self._arrived_s = time.monotonic()
        self._first: TokenDelta | None = None
        self._unread: list[TokenDelta] = []
        self._error: MlxServeError | None = None
        self._arrival = asyncio.Event()

    @property
    def id(self) -> str:
        """The id that its caller knows."""
        return self.request.request_id

    @property
    def num_unread(self) -> int:
        """Deltas taken in and not read yet."""
        return len(self._unread)

    def next_attempt(self) -> GenerateRequest:
        """What to submit. The first attempt is the request itself; a later one has an id of its own."""
        self.attempts += 1
        self.is_paused = False
        if self.attempts == 1:
            self.attempt = self.id
            return self.request
        self.attempt = f"{self.id}~{self.attempts}"
        return replace(
            self.request,
            request_id=self.attempt,
            generated_token_ids=tuple(self.tokens),
            arrival_s=self._arrived_s,
        )

    def take(self, delta: TokenDelta) -> None:
        """New tokens, or the end. Of a later attempt, what is known of the first one stays true."""
        if self.attempts > 1:
            first = self._first or delta
            delta = replace(delta, request_id=self.id, cached_tokens=first.cached_tokens, queue_s=first.queue_s)
        self._first = self._first or delta
        if self.is_finished:
            return
        self.is_finished = delta.finish_reason is not None
        self.tokens.extend(delta.token_ids)
        self._unread.append(delta)
        self._arrival.set()

    def fail(self, error: MlxServeError) -> None:
        """The request ends with an exception at its reader."""
        if not self.is_finished:
            self.is_finished = True
            self._error = error
            self._arrival.set()

    async def read(self) -> TokenDelta:
        """Everything that has come, as one delta. Raises what `fail` was given."""
        while not self._unread and self._error is None:
            self._arrival.clear()
            await self._arrival.wait()
        if self._unread:
            unread, self._unread = self._unread, []
            return _joined(unread)
        assert self._error is not None
        raise self._error


class Streams:
    """Every request of one client that is alive. Belongs to one event loop.

    submit: begin an attempt (`attempt`) and hand it to the engine, now or later; raises to refuse the request.
    cancel: end an attempt in the engine. closed: a request is over, and nobody reads it any more.
    """

    def __init__(
        self,
        submit: Callable[[TokenStream], None],
        cancel: Callable[[str], None],
        closed: Callable[[TokenStream], None] = lambda stream: None,
    ) -> None:
        self._submit = submit
        self._cancel = cancel
        self._closed = closed
        self._by_id: dict[str, TokenStream] = {}
        self._by_attempt: dict[str, TokenStream] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_paused(self) -> int:
        """Requests that wait until their reader has read."""
        return sum(stream.is_paused for stream in self._by_id.values())

    def of_attempt(self, attempt: str) -> TokenStream | None:
        """None: that attempt is over."""
        return self._by_attempt.get(attempt)

    def unfinished(self) -> list[TokenStream]:
        """In the order of their arrival."""
        return [stream for stream in self._by_id.values() if not stream.is_finished]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `EngineClient.generate`."""
        if request.request_id in self._by_id:
            raise RequestError(f"request id {request.request_id!r} is in use", field="request_id")
        stream = self._by_id[request.request_id] = TokenStream(request)
        finished = False
        try:
            self._submit(stream)
            while not finished:
                delta = await stream.read()
                finished = delta.finish_reason is not None
                yield delta
                if stream.is_paused and not stream.num_unread:
                    self._submit(stream)
        finally:
            del self._by_id[request.request_id]
            stream.is_finished = True
            self.withdraw(stream)
            self._closed(stream)

    def attempt(self, stream: TokenStream) -> GenerateRequest:
        """Begin the next attempt: from now on its deltas are taken in."""
        request = stream.next_attempt()
        self._by_attempt[request.request_id] = stream
        return request

    def deliver(self, deltas: Iterable[TokenDelta]) -> None:
        """Take deltas of an engine in. Those of an attempt that is over are dropped."""
        for delta in deltas:
            stream = self._by_attempt.get(delta.request_id)
            if stream is None:
                continue
            stream.take(delta)
            if stream.is_finished:
                self._forget_attempt(stream)
            elif stream.num_unread >= PAUSE_AT:
                self.withdraw(stream)
                stream.is_paused = True

    def fail(self, stream: TokenStream, error: MlxServeError) -> None:
        """End a request with an exception at its reader."""
        stream.fail(error)
        self._forget_attempt(stream)

    def end(self, stream: TokenStream, reason: FinishReason, why: str) -> None:
        """End a request with a last delta of our own."""
        stream.take(TokenDelta(request_id=stream.id, finish_reason=reason, error=why))
        self._forget_attempt(stream)

    def end_all(self, reason: FinishReason, why: str) -> None:
        """End every request with a last delta of our own."""
        for stream in self.unfinished():
            self.end(stream, reason, why)

    def withdraw(self, stream: TokenStream) -> None:
        """Take a request out of the engine. What it has generated there stays in the prefix cache."""
        attempt = stream.attempt
        if self._forget_attempt(stream) and attempt is not None:
            self._cancel(attempt)

    def lose_all(self) -> None:
        """The engine is gone: every attempt is over."""
        for stream in list(self._by_attempt.values()):
            self._forget_attempt(stream)

    def _forget_attempt(self, stream: TokenStream) -> bool:
        attempt, stream.attempt = stream.attempt, None
        return attempt is not None and self._by_attempt.pop(attempt, None) is not None


def _joined(deltas: list[TokenDelta]) -> TokenDelta:
    if len(deltas) == 1:
        return deltas[0]
    return replace(
        deltas[-1],
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
    )
