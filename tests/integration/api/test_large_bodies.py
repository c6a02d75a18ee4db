"""A body within its size limit that would keep the daemon busy for seconds."""

import pytest
from starlette.requests import Request
from starlette.types import Message

from mlx_server.api.body import LARGE_BYTES, MAX_CONTAINERS, MAX_EXPONENTS, BodyReader, parse_json_object
from mlx_server.core.errors import RequestError

SIZE = 12 << 20


async def read(body: bytes) -> dict[str, object]:
    pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]

    async def receive() -> Message:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    return await BodyReader(32 << 20, 10).read_json_object(Request({"type": "http", "headers": []}, receive))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[' + b"{}," * (SIZE // 3) + b"1]}",
        b"[" * SIZE,
        b'{"a":' * (SIZE // 5),
        b'{"a":[' + b"0," * (SIZE // 2) + b"1]}",
        b'{"a":[' + b'"",' * (SIZE // 3) + b"1]}",
        b'{"a":"\\\\","b":[' + b"{}," * (SIZE // 3) + b'1],"c":"\\""}',
        b'{"a":[' + b"1.2345678901234567e-300," * (MAX_EXPONENTS + 1) + b"1]}",
    ],
    ids=["objects", "arrays", "nested objects", "numbers", "strings", "behind escapes", "exponents"],
)
async def test_too_many_values_are_a_413(body: bytes) -> None:
    with pytest.raises(RequestError, match="too many values"):
        await read(body)


@pytest.mark.parametrize(
    "text", ["[{},1e9] " * 900_000, '\\"{\\\\\\"' * 700_000, "plain " * 1_000_000, "\\u00e9" * 900_000]
)
async def test_text_may_be_as_long_and_look_as_it_likes(text: str) -> None:
    body = b'{"messages":[{"role":"user","content":"' + text.encode() + b'"}]}'
    assert len(body) > 16 * MAX_CONTAINERS
    assert await read(body) == parse_json_object(body)


async def test_a_million_token_ids_are_allowed() -> None:
    ids = b",".join(b"123456" for _ in range(1_000_000))
    assert len(ids) > LARGE_BYTES
    assert await read(b'{"prompt":[' + ids + b"]}") == {"prompt": [123456] * 1_000_000}


async def test_a_large_body_may_not_be_deep_either() -> None:
    padding = b'"' + b" " * LARGE_BYTES + b'"'
    with pytest.raises(RequestError, match="64 levels"):
        await read(b'{"a":' * 70 + padding + b"}" * 70)
