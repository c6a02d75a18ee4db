"""Text to token ids: the tokenizer and the chat template of a local model folder."""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer

from mlx_server.chat.control_tokens import BREAK, ControlTokens
from mlx_server.chat.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    is_byte_level,
    token_to_bytes,
)
from mlx_server.core.errors import ModelLoadError, RequestError

Message = Mapping[str, Any]

LONG_TEXT_CHARS = 2000
"""Longer prompts are rendered and encoded off the event loop (chosen by guess: about a millisecond)."""
_FEWEST_CHARS_PER_TOKEN = 16  # of most text; a text with fewer tokens than that is encoded whole
_CUT_MARGIN = 1.25  # cutting a text changes the tokens at the cut
_MESSAGE_CHARS = 50  # rendering an empty message costs about as much as encoding this many characters

_RENDER_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template, which is the model's code and not ours, raises over messages that it does not take."""


class ChatTokenizer:
    """One model's tokenizer. Thread-safe: nothing is changed after construction but two caches.

    tokenizer: a transformers tokenizer backed by the `tokenizers` library.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise ModelLoadError("the model's tokenizer has no fast form (tokenizer.json)")
        self._template = tokenizer
        self._has_template = bool(getattr(tokenizer, "chat_template", None))
        self._special, self._control = _control_tokens(backend, getattr(tokenizer, "chat_template", None))
        self._backend, self._break_id = _private_copy(backend)
        self._special_ids = frozenset(
            token_id for token_id, token in self._backend.get_added_tokens_decoder().items() if token.special
        )
        self._byte_level = is_byte_level(backend)
        self._bytes: dict[int, bytes] = {}
        self._answer_bytes: dict[int, bytes] = {}
        self._reserved = _reserved_names(tokenizer)
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="mlx-tokenize")

    @property
    def has_chat_template(self) -> bool:
        return self._has_template

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Tokens that only the template may write."""
        return self._control.tokens

    def close(self) -> None:
        """Drop work that waits for a thread; the threads end after what they are doing."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def encode_chat(
        self,
        messages: Sequence[Message],
        template_kwargs: Mapping[str, Any] | None = None,
        max_model_len: int | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a chat, ready for the answer. Raises `RequestError` with the template's message.

        A text many times longer than `max_model_len` tokens is refused without encoding all of it;
        whether the rest fits is for the caller to see.
        """
        if sum(map(_size, messages)) <= LONG_TEXT_CHARS:
            return self.chat_ids(messages, template_kwargs, max_model_len)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.chat_ids, messages, template_kwargs, max_model_len)

    def chat_ids(
        self,
        messages: Sequence[Message],
        template_kwargs: Mapping[str, Any] | None = None,
        max_model_len: int | None = None,
    ) -> tuple[int, ...]:
        """As `encode_chat`, on the calling thread."""
        text = self._control.cut(self._render(messages, template_kwargs or {}))
        if max_model_len is not None:
            self._check_length(text, max_model_len)
        return self._encode(text)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text: no control token comes out of it, and none is added."""
        return self._encode(self._control.cut_all(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, without special tokens."""
        return self._backend.decode(list(token_ids), skip_special_tokens=True)

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one choice."""
        if self._byte_level:
            return ByteDetokenizer(self._bytes_in_answer)
        return WindowDetokenizer(self._backend, self._special_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token on its own, special tokens included; empty for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None or token_id == self._break_id:
            return b""
        if self._byte_level:
            return token_to_bytes(token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()

    def _bytes_in_answer(self, token_id: int) -> bytes:
        known = self._answer_bytes.get(token_id)
        if known is None:
            known = b"" if token_id in self._special_ids else self.token_bytes(token_id)
            self._answer_bytes[token_id] = known
        return known

    def _render(self, messages: Sequence[Message], template_kwargs: Mapping[str, Any]) -> str:
        if not self._has_template:
            raise RequestError(
                "this model has no chat template, so it cannot answer chats", "messages", "no_chat_template"
            )
        for name in template_kwargs:
            if not name.isidentifier() or name in self._reserved:
                raise RequestError(f"'{name}' cannot be set from a request", f"chat_template_kwargs.{name}")
        try:
            rendered = self._template.apply_chat_template(
                [self._marked(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **self._control.mark(dict(template_kwargs)),
            )
        except _RENDER_ERRORS as error:
            raise RequestError(f"the model's chat template refuses these messages: {error}", "messages") from error
        return str(rendered)

    def _marked(self, message: Message) -> dict[str, Any]:
        """What the model itself wrote may hold its visible control tokens (`</think>`), as it did then."""
        control = self._special if message.get("role") == "assistant" else self._control
        return {key: control.mark(value) for key, value in message.items()}

    def _check_length(self, text: str, max_model_len: int) -> None:
        size = max_model_len * _FEWEST_CHARS_PER_TOKEN
        if len(text) <= 2 * size:
            return
        count = len(self._encode(text[:size]))
        if count > max_model_len * _CUT_MARGIN:
            raise RequestError(
                f"This model's maximum context length is {max_model_len} tokens. However, the first {size} of "
                f"your prompt's {len(text)} characters make {count} tokens already. "
                "Please reduce the length of the prompt.",
                "messages",
                "context_length_exceeded",
            )

    def _encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if BREAK in text:
            return tuple(token_id for token_id in ids if token_id != self._break_id)
        return tuple(ids)


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """Load a local folder: no network, no code from the folder. Raises `ModelLoadError` with the reason."""
    # transformers advises on import that PyTorch is missing; this project does not use PyTorch.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Waits where another thread is importing it; only then does it have its names.
    import transformers  # noqa: F401
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a broken folder raises, this model cannot be served
        raise ModelLoadError(f"the tokenizer in {folder} cannot be loaded: {error}") from error
    return ChatTokenizer(tokenizer)


def _size(message: Message) -> int:
    """Characters that a message costs, roughly; tool calls count as long."""
    if "tool_calls" in message:
        return LONG_TEXT_CHARS + 1
    content = message.get("content")
    return _MESSAGE_CHARS + (len(content) if isinstance(content, str) else 0)


def _control_tokens(backend: Tokenizer, template: object) -> tuple[ControlTokens, ControlTokens]:
    """The special tokens; and these with the other added tokens that the template itself writes."""
    source = "\n".join(template.values()) if isinstance(template, dict) else str(template or "")
    added = backend.get_added_tokens_decoder().values()
    special = [token.content for token in added if token.special]
    return ControlTokens(special), ControlTokens(
        [*special, *(token.content for token in added if token.content in source)]
    )


def _private_copy(backend: Tokenizer) -> tuple[Tokenizer, int]:
    """A copy that knows the break mark, and the id it has there.

    Special tokens are matched in the raw text only: a normalizer must not make one out of lookalikes.
    """
    own = copy.deepcopy(backend)
    own.no_truncation()
    own.no_padding()
    own.encode_special_tokens = False
    raw = [_matched_raw(token) for token in own.get_added_tokens_decoder().values() if token.special]
    own.add_special_tokens([*raw, AddedToken(BREAK, normalized=False, special=True)])
    break_id = own.token_to_id(BREAK)
    if break_id is None:
        raise ModelLoadError("the model's tokenizer does not take an additional token; it cannot be served")
    return own, break_id


def _matched_raw(token: AddedToken) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=True,
    )


def _reserved_names(tokenizer: Any) -> frozenset[str]:
    """Names that a client must not set: arguments of the renderer, and the special tokens."""
    arguments = inspect.signature(tokenizer.apply_chat_template).parameters
    return frozenset({*arguments, *tokenizer.special_tokens_map, "messages", "self"})
