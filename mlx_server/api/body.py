"""Reading a JSON body, bounded while it arrives and while it is parsed."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from mlx_server.api.disconnect import ClientDisconnectedError
from mlx_server.api.errors import OverloadedError, RefusedError, TimedOutError
from mlx_server.core.errors import RequestError

MAX_DEPTH = 64
"""Deepest nesting of a body. Ours has no use for more, and recursion over it has a limit."""
MAX_IN_FLIGHT_BYTES = 256 << 20
"""Of all bodies that are arriving or being parsed; one more byte, and its request gets a 503."""
WHOLE_BODY_S = 60.0
"""Longest time from the first to the last byte of a body, or `client_timeout_s` where that is longer."""
LARGE_BYTES = 256 << 10
"""A larger body is parsed beside the event loop, one at a time."""
MAX_STRINGS = 500_000
MAX_CONTAINERS = 250_000
MAX_VALUES = 2_000_000
MAX_EXPONENTS = 16_384
"""Of a large body most must be text: it may have so many strings, keys included, objects and lists, values, and numbers
with an exponent. The parser holds the interpreter meanwhile: unbounded, 32 MB of `{},` take it 2 s, and 32 MB of
1.2345678901234567e-300 10 s (on one core of a server); within these bounds it is about a quarter of a second."""
_EXPONENT = re.compile(rb"[0-9][eE]")


class BodyReader:
    """Reads the bodies of all requests. Owned by the event loop."""

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        """timeout_s: longest wait for the next part of a body."""
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._in_flight = 0  # bytes
        self._parsing = asyncio.Semaphore(1)

    async def read_json_object(self, request: Request) -> dict[str, Any]:
        """The body as a dict whose strings are valid Unicode and whose numbers are finite.

        Raises `RefusedError` 415, 413 and 408, `OverloadedError`, `RequestError` for what is not a JSON object.
        """
        _check_headers(request)
        self._check_declared(request)
        chunks: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(max(WHOLE_BODY_S, self._timeout_s)):
                    await self._read(request, chunks)
            except TimeoutError as error:
                raise TimedOutError("the body of the request did not arrive in time") from error
            if sum(map(len, chunks)) <= LARGE_BYTES:
                return parse_json_object(b"".join(chunks))
            async with self._parsing:
                return await asyncio.to_thread(_parse_large, chunks)
        finally:
            self._in_flight -= sum(map(len, chunks))

    def _check_declared(self, request: Request) -> None:
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > self._max_bytes):
            raise self._too_large()

    async def _read(self, request: Request, chunks: list[bytes]) -> None:
        size = 0
        try:
            async with aclosing(request.stream()) as parts:
                while True:
                    async with asyncio.timeout(self._timeout_s):
                        part = await anext(parts, None)
                    if part is None:
                        return
                    chunks.append(part)
                    self._in_flight += len(part)
                    size += len(part)
                    if size > self._max_bytes:
                        raise self._too_large()
                    if self._in_flight > max(MAX_IN_FLIGHT_BYTES, self._max_bytes):
                        raise OverloadedError("too many large requests are arriving at the same time")
        except ClientDisconnect as error:
            raise ClientDisconnectedError from error

    def _too_large(self) -> RefusedError:
        return RefusedError(413, f"the body is larger than {self._max_bytes} bytes", code="body_too_large")


def parse_json_object(body: bytes) -> dict[str, Any]:
    """See `BodyReader.read_json_object`."""
    try:
        value = msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise RequestError("the body is not valid UTF-8", code="invalid_json") from error
    except RecursionError as error:
        raise _too_deep() from error
    except msgspec.MsgspecError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    if _is_deeper(value, MAX_DEPTH):
        raise _too_deep()
    return value


def _parse_large(chunks: list[bytes]) -> dict[str, Any]:
    body = b"".join(chunks)
    _check_structure(body)
    return parse_json_object(body)


def _check_structure(body: bytes) -> None:
    """Raise a 413 for a body that is slow to parse for its size."""
    plain = _without_escapes(body)
    refusal = RefusedError(413, "the body has too many values that are not text", code="body_too_large")
    if plain.count(b'"') > 2 * MAX_STRINGS:
        raise refusal
    outside = b"".join(plain.split(b'"')[::2])
    containers = outside.count(b"{") + outside.count(b"[")
    if containers > MAX_CONTAINERS or outside.count(b",") > MAX_VALUES:
        raise refusal
    if sum(1 for _ in _EXPONENT.finditer(outside)) > MAX_EXPONENTS:
        raise refusal


def _without_escapes(body: bytes) -> bytes:
    """The body without escaped quotes, so that every quote opens or closes a string."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")


def _check_headers(request: Request) -> None:
    content_type = request.headers.get("content-type")
    if content_type is None and "origin" in request.headers:
        # A page of another site may send this without asking first; programs send no Origin.
        raise RefusedError(415, "the content type must be application/json", code="bad_content_type")
    if content_type is not None:
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise RefusedError(
                415,
                f"the content type must be application/json, not {media_type[:80]!r}",
                code="bad_content_type",
            )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise RefusedError(415, f"content encoding {encoding[:40]!r} is not supported", code="bad_content_encoding")


def _is_deeper(value: object, depth: int) -> bool:
    """Whether containers nest deeper than `depth`."""
    level = [value]
    for _ in range(depth):
        level = [item for parent in level for item in _children(parent)]
        if not level:
            return False
    return True


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return [item for item in value.values() if isinstance(item, (dict, list))]
    if isinstance(value, list):
        return [item for item in value if isinstance(item, (dict, list))]
    return []
