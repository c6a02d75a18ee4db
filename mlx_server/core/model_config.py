"""What a model's config.json says, whatever its family calls it."""

from __future__ import annotations

from typing import Any

_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "n_positions", "seq_length", "n_ctx")
_DEFAULT_CONTEXT = 4096


def context_length(config: dict[str, Any]) -> int:
    """Most positions the model knows, by its configuration."""
    for part in (config, text_config(config)):
        for key in _CONTEXT_KEYS:
            if isinstance(part.get(key), int) and part[key] > 0:
                return int(part[key])
    return _DEFAULT_CONTEXT


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a multimodal configuration that is about text; empty for others."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else {}
