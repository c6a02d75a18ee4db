"""Why a request cannot be longer than it can."""

from __future__ import annotations

from mlx_server.core.messages import EngineInfo

_MIB = 1 << 20


def limit_reason(info: EngineInfo, max_model_len: int | None) -> str:
    """What sets `info.max_model_len`, and what would raise it. max_model_len: the setting."""
    pool_tokens = info.num_blocks * info.block_size
    if info.max_model_len == pool_tokens:
        size = pool_tokens * info.kv_bytes_per_token / _MIB
        return (
            f"The limit is the KV pool: {info.num_blocks} blocks of {info.block_size} tokens, {size:.1f} MB at "
            f"{info.kv_bytes_per_token / 1024:.1f} KB a token; --kv-memory gives it more."
        )
    if info.max_model_len == max_model_len:
        return f"The limit is --max-model-len {max_model_len}."
    return "The limit is the context that the model knows."
