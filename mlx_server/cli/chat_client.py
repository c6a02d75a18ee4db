"""The chat's side of HTTP: one daemon, streamed answers, errors a person can read."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx2
import msgspec

from mlx_server.core.errors import MlxServeError
from mlx_server.core.messages import EngineStats

KEY_VARIABLE = "MLX_SERVE_API_KEY"
CONNECT_TIMEOUT_S = 5.0
STREAM_TIMEOUT = httpx2.Timeout(CONNECT_TIMEOUT_S, read=None)
"""No read timeout: a long prompt is silent for long, and the person can interrupt."""


class ChatError(MlxServeError):
    """One turn failed. The message is one line for a person; the chat goes on."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """The last thing of an answer that was not cut off. Times are measured here, on the client's side.

    first_token_s: seconds from sending the request to the first text.
    tokens_per_s: after the first token; None where there was one token only, or no usage.
    """

    finish_reason: str
    first_token_s: float
    tokens_per_s: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


class Health(msgspec.Struct, kw_only=True):
    """What GET /health says. status: 'ok', 'loading', 'restarting', 'draining' or 'failed'.

    Everything but the status is missing where the daemon needs an API key and got none.
    """

    status: str
    model: str = ""
    version: str = ""
    pid: int = 0
    max_model_len: int | None = None
    stage: str = ""
    progress: float = 0.0
    reason: str = ""
    uptime_s: float = 0.0
    stats: EngineStats | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class ChatClient:
    """One daemon at `url`. Use as an async context manager. Methods raise `ChatError` and nothing else.

    key: the API key, where the daemon needs one.
    """

    def __init__(self, url: str, transport: httpx2.AsyncBaseTransport | None = None, *, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            headers={} if key is None else {"authorization": _bearer(key)},
            timeout=CONNECT_TIMEOUT_S,
            transport=transport,
            # A proxy from the environment cannot reach this machine's loopback.
            trust_env=not is_loopback(httpx2.URL(self.url).host),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def health(self) -> Health | None:
        """None when nothing listens there."""
        try:
            response = await self._http.get("/health")
            return msgspec.json.decode(response.content, type=Health)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            return None
        except httpx2.HTTPError as error:
            raise ChatError(f"{self.url} does not answer: {_cause(error)}") from error
        except msgspec.DecodeError as error:
            raise ChatError(f"what answers at {self.url} is not mlx-serve") from error

    async def serves(self, model: str) -> bool:
        """Whether `model` is a name of the model served there."""
        try:
            response = await self._http.get("/v1/models/" + quote(model))
        except httpx2.HTTPError as error:
            raise ChatError(f"{self.url} does not answer: {_cause(error)}") from error
        if response.status_code not in (httpx2.codes.OK, httpx2.codes.NOT_FOUND):
            raise _refusal(response, response.content)
        return response.status_code == httpx2.codes.OK

    async def answer(self, body: dict[str, Any]) -> AsyncGenerator[TextPart | AnswerEnd, None]:
        """Stream the answer to a chat completion request; the last item is the `AnswerEnd`.

        Closing the generator, or cancelling the task that awaits it, closes the connection, and the
        daemon then stops generating.
        """
        started = time.perf_counter()
        reader = _AnswerReader(started)
        request = body | {"stream": True, "stream_options": {"include_usage": True}}
        async with self._stream("POST", "/v1/chat/completions", STREAM_TIMEOUT, json=request) as response:
            async for event in httpx2.EventSource(response):
                if event.data == "[DONE]":
                    break
                for part in reader.take(event.data):
                    yield part
        yield reader.end()

    async def complete(self, body: dict[str, Any]) -> bytes:
        """The whole response to a chat completion request, as JSON text."""
        with self._lost_is_a_chat_error():
            response = await self._http.post("/v1/chat/completions", json=body, timeout=STREAM_TIMEOUT)
        if response.status_code != httpx2.codes.OK:
            raise _refusal(response, response.content)
        return response.content

    async def events(self, path: str, silence_s: float) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """The events of a GET, until they end. `silence_s` without one counts as a lost connection."""
        patience = httpx2.Timeout(CONNECT_TIMEOUT_S, read=silence_s)
        async with self._stream("GET", path, patience) as response:
            async for event in httpx2.EventSource(response):
                yield event

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, patience: httpx2.Timeout, json: dict[str, Any] | None = None
    ) -> AsyncIterator[httpx2.Response]:
        with self._lost_is_a_chat_error():
            async with self._http.stream(method, path, json=json, timeout=patience) as response:
                if response.status_code != httpx2.codes.OK:
                    raise _refusal(response, await response.aread())
                yield response

    @contextmanager
    def _lost_is_a_chat_error(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise ChatError(f"nothing answers at {self.url}; is the daemon still running?") from error
        except httpx2.HTTPError as error:
            raise ChatError(f"the connection to {self.url} was lost: {_cause(error)}") from error


class _AnswerReader:
    """Turns the events of one stream into parts, and keeps the times."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._first: float | None = None
        self._last = started
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None

    def take(self, data: str) -> list[TextPart]:
        try:
            chunk = msgspec.json.decode(data, type=_Chunk)
        except msgspec.DecodeError as error:
            raise ChatError(f"the daemon sent an event that is no chat completion: {data[:80]!r}") from error
        if chunk.error is not None:
            raise ChatError(f"the answer broke off: {chunk.error.message or chunk.error.code}")
        self._usage = chunk.usage or self._usage
        parts: list[TextPart] = []
        for choice in chunk.choices:
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.delta.reasoning_content:
                parts.append(TextPart(choice.delta.reasoning_content, is_reasoning=True))
            if choice.delta.content:
                parts.append(TextPart(choice.delta.content))
        if parts:
            self._last = time.perf_counter()
            self._first = self._first or self._last
        return parts

    def end(self) -> AnswerEnd:
        if self._finish_reason is None:
            raise ChatError("the connection was closed in the middle of the answer")
        first = self._first or time.perf_counter()
        usage = self._usage
        later_tokens = usage.completion_tokens - 1 if usage else 0
        rate = later_tokens / (self._last - first) if later_tokens > 0 and self._last > first else None
        details = usage.prompt_tokens_details if usage else None
        return AnswerEnd(
            finish_reason=self._finish_reason,
            first_token_s=first - self._started,
            tokens_per_s=rate,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            cached_tokens=details.cached_tokens if details else None,
        )


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bearer(key: str) -> str:
    if not (key.isascii() and key.isprintable()):
        raise ChatError("the API key holds characters that no key has")
    return f"Bearer {key}"


def _refusal(response: httpx2.Response, body: bytes) -> ChatError:
    """The error for a status other than 200, with what to do about it where that is known."""
    try:
        error = msgspec.json.decode(body, type=_Chunk).error or _Error()
    except msgspec.DecodeError:
        error = _Error()
    message = error.message or f"the daemon answered {response.status_code}"
    if error.code == "context_length_exceeded":
        return ChatError(f"{message} (/undo takes back the last exchange, /new starts afresh)")
    if response.status_code == httpx2.codes.UNAUTHORIZED:
        return ChatError(f"{message} (--key or {KEY_VARIABLE} gives one)")
    if response.status_code == httpx2.codes.TOO_MANY_REQUESTS:
        return ChatError(f"the daemon is busy: {message} (/retry asks again)")
    return ChatError(message)


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__
