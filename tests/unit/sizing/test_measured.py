"""What a plan calls the most is not passed when that is computed."""

import mlx.core as mx
import pytest

from mlx_server.runner.attend import attend
from mlx_server.runner.device import compute_device

HEADS, KV_HEADS, CHUNK, CONTEXT, DIM = 4, 2, 256, 8192, 64


@pytest.mark.skipif(not compute_device().is_cpu, reason="of the path without kernels")
def test_scores_exist_twice_at_most() -> None:
    """As `_attend_chunk_in_parts` calls it: a prefix, and the chunk's own keys."""
    q = mx.random.normal((KV_HEADS, HEADS // KV_HEADS, CHUNK, DIM))
    prefix, own = (mx.random.normal((KV_HEADS, 1, n, DIM)) for n in (CONTEXT - CHUNK, CHUNK))
    mx.eval(q, prefix, own)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(attend(q, [(prefix, prefix, None), (own, own, mx.zeros((CHUNK, CHUNK)))], None))
    scores = HEADS * CHUNK * CONTEXT * 4
    assert 1.5 * scores < mx.get_peak_memory() - before < 2.1 * scores
