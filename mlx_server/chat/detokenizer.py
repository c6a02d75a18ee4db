"""Token ids to text, one token at a time.

The pieces of a request, joined, equal the decoding of all its tokens without special tokens. With a
byte-level tokenizer that holds for any ids; with byte fallback (SentencePiece) it holds as long as the
bytes make valid UTF-8, because there the decoding of a valid character may change under a later byte.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

_REPLACEMENT = "\ufffd"
_LONGEST_INCOMPLETE = 16
"""Most tokens held back because they make no text or end in U+FFFD; no character spans that many."""


class Detokenizer(Protocol):
    """Belongs to one choice of one request."""

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What is still held back, at the end of the answer. Nothing may be pushed after it."""
        ...


class ByteDetokenizer:
    """For byte-level tokenizers: every token is a string of bytes. Constant time per token."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For every other decoder: decodes the tokens behind the last piece again, as its context.

    Cost per token: two decodings of a window of the last few tokens, whatever the length of the answer.
    """

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._special_ids or self._tokenizer.id_to_token(token_id) is None:
            return ""
        self._pending.append(token_id)
        text = self._tokenizer.decode(self._context + self._pending)
        incomplete = text.endswith(_REPLACEMENT) or len(text) <= len(self._context_text)
        if incomplete and len(self._pending) < _LONGEST_INCOMPLETE:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._tokenizer.decode(self._context + self._pending)) if self._pending else ""

    def _advance(self, text: str) -> str:
        piece = text[len(self._context_text) :]
        self._context, self._pending = self._pending, []
        self._context_text = self._tokenizer.decode(self._context)
        return piece


def byte_table() -> dict[str, int]:
    """Byte of each stand-in character of a byte-level vocabulary (GPT-2's `bytes_to_unicode`, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = byte_table()


def token_to_bytes(token: str) -> bytes:
    """Bytes of a byte-level token. Added tokens outside the byte alphabet stand for themselves."""
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether tokens can be turned into bytes one by one."""
    return isinstance(tokenizer.decoder, ByteLevel)
