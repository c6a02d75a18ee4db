"""Log-probabilities in the shape of the OpenAI API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlx_server.chat.tokenizer import ChatTokenizer
from mlx_server.core.messages import TokenLogprob

_LEAST = -9999.0
"""What the OpenAI API shows for an impossible token; JSON has no minus infinity."""


def logprob_entries(tokens: Iterable[tuple[int, TokenLogprob]], tokenizer: ChatTokenizer) -> list[dict[str, Any]]:
    """One entry per generated token."""
    return [
        _entry(token_id, logprob.logprob, tokenizer)
        | {"top_logprobs": [_entry(other, value, tokenizer) for other, value in logprob.top]}
        for token_id, logprob in tokens
    ]


def _entry(token_id: int, logprob: float, tokenizer: ChatTokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    # `not >` also catches NaN.
    value = logprob if logprob > _LEAST else _LEAST
    return {"token": data.decode(errors="replace"), "logprob": value, "bytes": list(data)}
