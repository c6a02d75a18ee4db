"""How much memory the KV pool gets, and MLX's buffer cache."""

from __future__ import annotations

import mlx.core as mx
import psutil

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.settings import Settings
from mlx_server.core.step import BLOCK_SIZE

GIB = 1 << 30

_METAL_SHARE = 0.80  # of the recommended working set, for weights and pool together (chosen by guess; measure)
_CPU_SHARE = 0.20  # of available memory (chosen by guess)
_CPU_MOST = 1 * GIB
_CONTEXTS = 16  # a default pool larger than this many full contexts helps nobody
_LEAST_TOKENS = 256
_KEPT_SHARE = 1 / 8
_INITIAL_SHARE = 1 / 16  # of the budget: a pool that is not used costs little
_INITIAL_BLOCKS = 64


def pool_blocks(settings: Settings, bytes_per_token: int, weight_bytes: int, context_length: int) -> int:
    """Number of KV blocks. Raises `ModelLoadError` with the arithmetic when hardly a request would fit."""
    block_bytes = bytes_per_token * BLOCK_SIZE
    if settings.kv_blocks is not None:
        return settings.kv_blocks
    if settings.kv_memory is not None:
        budget = settings.kv_memory
    else:
        budget = min(_default_budget(weight_bytes), _CONTEXTS * context_length * bytes_per_token)
    blocks = budget // block_bytes
    if blocks * BLOCK_SIZE < _LEAST_TOKENS:
        raise ModelLoadError(
            f"a KV pool of {budget / GIB:.2f} GB holds {max(blocks, 0)} blocks of {block_bytes / 2**20:.1f} MB, and "
            f"at least {_LEAST_TOKENS // BLOCK_SIZE} are needed beside {weight_bytes / GIB:.2f} GB of weights "
            "(a smaller or more quantized model, or --kv-memory)"
        )
    return blocks


def initial_blocks(settings: Settings, most: int) -> int:
    """With how many blocks the pool starts; `kv_blocks` is a fixed number."""
    return most if settings.kv_blocks is not None else min(most, max(_INITIAL_BLOCKS, int(most * _INITIAL_SHARE)))


def _default_budget(weight_bytes: int) -> int:
    recommended = mx.device_info().get("max_recommended_working_set_size")
    if recommended is not None:
        return int(_METAL_SHARE * int(recommended)) - weight_bytes
    return min(int(_CPU_SHARE * psutil.virtual_memory().available), _CPU_MOST)


def kept_limit(pool_bytes: int) -> int:
    """Memory for gathered K/V kept between steps: a bounded share of the pool."""
    return int(pool_bytes * _KEPT_SHARE)


def limit_buffer_cache(pool_bytes: int) -> None:
    """Bound MLX's cache of freed buffers.

    The CPU backend's default of 32 MB makes every gather fault its pages in anew; Metal's default is no
    bound worth the name.
    """
    mx.set_cache_limit(buffer_cache_limit(pool_bytes))


def buffer_cache_limit(pool_bytes: int) -> int:
    """Bytes of freed buffers that MLX may keep."""
    return max(GIB // 4, min(pool_bytes, 2 * GIB))


def device_memory() -> tuple[int, int]:
    """(active, peak) bytes of MLX's allocator. Any thread may ask."""
    return mx.get_active_memory(), mx.get_peak_memory()
