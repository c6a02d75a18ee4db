"""Requests and answers of the chat endpoint, for tests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI

URL = "/v1/chat/completions"
WAIT_S = 10
"""Longest wait of a test for something that must happen."""


def chat(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "org/small", "messages": [{"role": "user", "content": content}], **fields}


def events(body: str) -> list[Any]:
    """The data of an event stream; 'DONE' for its end."""
    lines = [block.removeprefix("data: ") for block in body.split("\n\n") if block and block[0] != ":"]
    return ["DONE" if line == "[DONE]" else json.loads(line) for line in lines]


def text_of(chunks: list[Any], index: int = 0) -> str:
    parts = []
    for chunk in chunks:
        if chunk == "DONE":
            continue
        parts += [c["delta"].get("content") or "" for c in chunk["choices"] if c["index"] == index]
    return "".join(parts)


class RawCall:
    """One request straight into the ASGI application, with a client that can go away."""

    def __init__(self, app: FastAPI, body: dict[str, Any], path: str = URL) -> None:
        self.sent: list[dict[str, Any]] = []
        self.body_seen = asyncio.Event()
        self._gone = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8642),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def go_away(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and message.get("body"):
            self.body_seen.set()

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()
