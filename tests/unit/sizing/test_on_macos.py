"""What the plan takes for granted of Metal."""

import mlx.core as mx
import pytest

from mlx_server.runner.device import FUSED_HEAD_DIMS, compute_device

pytestmark = pytest.mark.macos

HEADS, CHUNK, CONTEXT = 8, 512, 8192


def peak_of_prefill(head_dim: int) -> int:
    """Bytes that attention of a chunk takes at most, its result included."""
    q = mx.random.normal((1, HEADS, CHUNK, head_dim)).astype(mx.float16)
    k, v = (mx.random.normal((1, HEADS, CONTEXT, head_dim)).astype(mx.float16) for _ in range(2))
    mx.eval(q, k, v)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask="causal"))
    return mx.get_peak_memory() - before


@pytest.mark.parametrize("head_dim", sorted(FUSED_HEAD_DIMS))
def test_fused_heads_keep_no_scores(head_dim: int) -> None:
    assert peak_of_prefill(head_dim) < HEADS * CHUNK * CONTEXT * 2


def test_other_heads_keep_them_at_most_twice() -> None:
    scores = HEADS * CHUNK * CONTEXT * 2
    assert scores <= peak_of_prefill(256) <= 2.5 * scores


def test_the_device_says_what_it_can_take() -> None:
    device = compute_device()
    assert not device.is_cpu
    assert device.memory_bytes is not None and device.memory_bytes > 1 << 30
