"""What a chat completion looks like on the wire. Chunks are assembled from prepared pieces of JSON."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mlx_server.api.sse import frame

_json = msgspec.json.encode


@dataclass(slots=True, frozen=True)
class Usage:
    """Token counts of a request; the prompt counts once however many choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def to_wire(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True, frozen=True)
class Completion:
    """What all chunks of an answer, and the answer as a whole, have in common."""

    model: str
    id: str = field(default_factory=lambda: "chatcmpl-" + secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> bytes:
        return _json(self.head("chat.completion") | {"choices": choices, "usage": usage.to_wire()})


class ChunkWriter:
    """Frames of one stream. `usage` in `delta` and `finish` is for `continuous_usage_stats`."""

    def __init__(self, completion: Completion, include_usage: bool) -> None:
        self._head = _json(completion.head("chat.completion.chunk"))[:-1]
        self._no_usage = b',"usage":null}' if include_usage else b"}"

    def role(self, index: int) -> bytes:
        return self._choice(index, b'{"role":"assistant","content":"","refusal":null}', b"null", b"null", None)

    def delta(self, index: int, text: str, logprobs: list[dict[str, Any]] | None, usage: Usage | None) -> bytes:
        content = b'{"content":' + _json(text) + b"}"
        scored = b"null" if logprobs is None else _json({"content": logprobs, "refusal": None})
        return self._choice(index, content, scored, b"null", usage)

    def finish(self, index: int, reason: str, usage: Usage | None) -> bytes:
        return self._choice(index, b"{}", b"null", _json(reason), usage)

    def usage(self, usage: Usage) -> bytes:
        return frame(self._head + b',"choices":[],"usage":' + _json(usage.to_wire()) + b"}")

    def _choice(self, index: int, delta: bytes, logprobs: bytes, reason: bytes, usage: Usage | None) -> bytes:
        end = self._no_usage if usage is None else b',"usage":' + _json(usage.to_wire()) + b"}"
        return frame(
            b'%b,"choices":[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}]%b'
            % (self._head, index, delta, logprobs, reason, end)
        )
