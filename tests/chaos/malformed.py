"""Requests that are wrong, as bytes. Each must be refused with a 4xx or by closing the connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.http_client import CHAT, request_bytes

_GOOD: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


def _with(**fields: Any) -> Callable[[str], bytes]:
    return lambda url: request_bytes(url, json.dumps(_GOOD | fields).encode())


def _body(data: bytes) -> Callable[[str], bytes]:
    return lambda url: request_bytes(url, data)


def _raw(data: bytes) -> Callable[[str], bytes]:
    return lambda url: data


def _headers(lines: str, body: bytes = b"") -> Callable[[str], bytes]:
    return lambda url: f"POST {CHAT} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n{lines}\r\n".encode() + body


MALFORMED: Mapping[str, Callable[[str], bytes]] = {
    "half a JSON object": _body(b'{"messages": [{"role": "user"'),
    "no JSON": _body(b"hello"),
    "bad UTF-8": _body(b'{"messages": "\xff\xfe"}'),
    "a lone surrogate": _body(b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
    "an array": _body(b"[1, 2]"),
    "not a number": _body(b'{"temperature": NaN}'),
    "deep nesting": _body(b"[" * 100_000),
    "an empty body": _body(b""),
    "no messages": _with(messages=[]),
    "messages of strings": _with(messages=["a"]),
    "an unknown role": _with(messages=[{"role": "ghost", "content": "x"}]),
    "content is a number": _with(messages=[{"role": "user", "content": 5}]),
    "a negative length": _with(max_tokens=-1),
    "a length in words": _with(max_tokens="many"),
    "a hot temperature": _with(temperature=99),
    "a million choices": _with(n=10**6),
    "stop is a number": _with(stop=5),
    "a bias outside the vocabulary": _with(logit_bias={"999999": 1}),
    "a bias of text": _with(logit_bias={"one": "two"}),
    "tools of nonsense": _with(tools="hammer"),
    "another model": _with(model="nobody/nothing"),
    "a prompt beyond the context": _with(messages=[{"role": "user", "content": "word " * 20_000}]),
    "a body beyond the limit": _body(b'{"messages": "' + b"x" * (2 << 20) + b'"}'),
    "a form": _headers("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n", b"a=b"),
    "a length that is a lie in words": _headers("Content-Length: several\r\n"),
    "a negative content length": _headers("Content-Length: -5\r\n"),
    "a bad chunk": _headers("Transfer-Encoding: chunked\r\n", b"zz\r\nhello\r\n"),
    "an unknown path": lambda url: request_bytes(url, b"{}", "/v1/nothing/../here"),
    "a foreign host": _raw(b"GET /v1/models HTTP/1.1\r\nHost: evil.example.com\r\nConnection: close\r\n\r\n"),
    "no HTTP": _raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03hello\r\n\r\n"),
    "a bare line": _raw(b"HELP\r\n\r\n"),
    "a huge header": _raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"y" * (1 << 20) + b"\r\n\r\n"),
    "zero bytes": _raw(b"GET /\x00\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}
"""Name -> bytes for a base URL. The daemon under test takes bodies of at most 1 MB."""
