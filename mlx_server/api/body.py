"""Reading a JSON body, bounded while it arrives."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from mlx_server.api.disconnect import ClientDisconnectedError
from mlx_server.api.errors import RefusedError
from mlx_server.core.errors import RequestError

MAX_DEPTH = 64
"""Deepest nesting of a body. Ours has no use for more, and recursion over it has a limit."""


async def read_json_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The body as a dict whose strings are valid Unicode and whose numbers are finite.

    Raises `RefusedError` 415 and 413, `RequestError` for what is not a JSON object.
    """
    _check_headers(request)
    body = await _read(request, max_bytes)
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


async def _read(request: Request, max_bytes: int) -> bytes:
    too_large = RefusedError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > max_bytes):
        raise too_large
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise too_large
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise ClientDisconnectedError from error
    return b"".join(chunks)


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
