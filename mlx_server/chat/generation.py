"""One choice's life: token ids from an engine to text, cut at the stop strings."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from mlx_server.chat.detokenizer import Detokenizer
from mlx_server.chat.stop import StopMatcher
from mlx_server.chat.tokenizer import ChatTokenizer
from mlx_server.core.errors import DeadlineError, EngineDeadError, GenerationError
from mlx_server.core.messages import FinishReason, GenerateRequest, TokenDelta, TokenLogprob
from mlx_server.engine.client import EngineClient


@dataclass(slots=True, frozen=True)
class TextDelta:
    """New text of one choice; the last one carries `finish_reason` (STOP or LENGTH, nothing else).

    tokens: (token id, logprob) of the tokens whose text has left, when logprobs were asked for.
    completion_tokens: tokens generated so far, those of a cut stop string included.
    """

    text: str
    tokens: tuple[tuple[int, TokenLogprob], ...]
    finish_reason: FinishReason | None
    completion_tokens: int
    cached_tokens: int
    queue_s: float


@dataclass(slots=True, frozen=True)
class Deadline:
    """When a request must be complete. timeout_s: how long it was given; at_s: the end, on the event loop's clock."""

    timeout_s: float
    at_s: float


async def generate_text(
    engine: EngineClient,
    request: GenerateRequest,
    tokenizer: ChatTokenizer,
    stops: Sequence[str] = (),
    deadline: Deadline | None = None,
) -> AsyncGenerator[TextDelta, None]:
    """One `TextDelta` for every delta of the engine, possibly without text, until the choice is finished.

    The engine's iterator is closed before the last delta is yielded, and whenever this generator is
    closed or cancelled (`test_generation.py`). Raises what `EngineClient.generate` raises;
    `GenerationError` when the engine reports an error, `EngineDeadError` when it gives the request up,
    `DeadlineError` when it takes too long, queued or running.
    """
    choice = _Choice(tokenizer.detokenizer(), StopMatcher(stops))
    deltas = engine.generate(request)
    async with aclosing(deltas):
        while (delta := await _next(deltas, deadline)) is not None:
            taken = choice.take(delta)
            if taken.finish_reason is not None:
                break
            yield taken
        else:
            raise GenerationError("the engine ended the request without a reason")
    yield taken


async def _next(deltas: AsyncGenerator[TokenDelta, None], deadline: Deadline | None) -> TokenDelta | None:
    """None at the end. A wait that is cut short has closed the iterator."""
    if deadline is None:
        return await anext(deltas, None)
    try:
        async with asyncio.timeout_at(deadline.at_s) as limit:
            return await anext(deltas, None)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlineError(deadline.timeout_s) from error


class _Choice:
    """Text state of one choice. Owned by its generator."""

    def __init__(self, detokenizer: Detokenizer, stop: StopMatcher) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._count = 0
        self._decoded = 0  # characters decoded
        self._left = 0  # characters that have left
        self._waiting: deque[tuple[int, int, int, TokenLogprob]] = deque()  # start, end, token id, logprob

    def take(self, delta: TokenDelta) -> TextDelta:
        if delta.finish_reason is FinishReason.ERROR:
            raise GenerationError(delta.error or "the engine failed on this request")
        if delta.finish_reason is FinishReason.ABORT:
            raise EngineDeadError(delta.error or "the engine stopped before the answer was complete")
        text = "".join(self._push_all(delta))
        finish = delta.finish_reason
        if finish is not None and not self._stop.matched:
            text += self._stop.push(self._detokenizer.flush())
            text += self._stop.flush()
        if self._stop.matched:
            finish = FinishReason.STOP
        self._left += len(text)
        return TextDelta(
            text, self._release(finish is not None), finish, self._count, delta.cached_tokens, delta.queue_s
        )

    def _push_all(self, delta: TokenDelta) -> list[str]:
        pieces = []
        for index, token_id in enumerate(delta.token_ids):
            self._count += 1
            piece = self._detokenizer.push(token_id)
            if delta.logprobs:
                span = (self._decoded, self._decoded + len(piece))
                self._waiting.append((*span, token_id, delta.logprobs[index]))
            self._decoded += len(piece)
            pieces.append(self._stop.push(piece))
            if self._stop.matched:
                break
        return pieces

    def _release(self, finished: bool) -> tuple[tuple[int, TokenLogprob], ...]:
        """Tokens whose text has left; of a token that is cut in two, the end of the answer decides."""
        released = []
        while self._waiting:
            start, end, token_id, logprob = self._waiting[0]
            cut_here = finished and (start < self._left or not self._stop.matched)
            if end > self._left and not cut_here:
                break
            released.append((token_id, logprob))
            self._waiting.popleft()
        return tuple(released)
