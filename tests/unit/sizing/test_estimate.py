"""The arithmetic of a plan, and that what fits is the largest that fits."""

from dataclasses import replace

import pytest

from mlx_server.services.sizing.estimate import Device, Estimate, estimate, largest_concurrency, largest_context
from mlx_server.services.sizing.shape import ModelShape

GIB = 1 << 30
SHAPE = ModelShape(
    model_type="x",
    layers=32,
    heads=32,
    head_dim=128,
    hidden=4096,
    intermediate=12288,
    kv_elements=32 * 2 * 8 * 128,
    kv_elements_of_layer=2 * 8 * 128,
    context=1 << 20,
    weight_bytes=4 * GIB,
    element_bytes=2,
    window=None,
    sliding_layers=0,
    is_multimodal=False,
)
DEVICE = Device("x", 32 * GIB, "", 0, frozenset({128}), lambda pool: pool // 8, lambda pool: GIB)


def of(context: int, concurrency: int, shape: ModelShape = SHAPE) -> Estimate:
    return estimate(shape, DEVICE, context, concurrency, 2048)


def test_a_request_takes_whole_blocks() -> None:
    per_token = 32 * 2 * 8 * 128 * 2
    assert of(64, 3).kv_per_token == per_token
    assert (of(64, 3).kv_per_request, of(65, 3).kv_per_request) == (64 * per_token, 96 * per_token)
    assert (of(65, 3).blocks, of(65, 3).pool) == (9, 9 * 32 * per_token)


def test_scores_are_kept_for_heads_without_a_fused_kernel() -> None:
    assert of(8192, 1).scores == 0
    assert of(8192, 1, replace(SHAPE, head_dim=256)).scores == 2 * 32 * 2048 * 8192 * 2
    assert of(100, 1, replace(SHAPE, head_dim=256)).scores == 2 * 32 * 100 * 100 * 2


def test_the_total_is_the_sum_of_the_parts() -> None:
    one = of(4096, 2)
    parts = (one.weights, one.pool, one.tails, one.kept, one.scores, one.activations, one.buffer_cache, one.program)
    assert one.total == sum(parts)
    assert one.kept == one.pool // 8


@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_the_longest_context_fits_and_one_block_more_does_not(head_dim: int, concurrency: int) -> None:
    shape = replace(SHAPE, head_dim=head_dim)
    longest = largest_context(shape, DEVICE, concurrency, 2048)
    assert 0 < longest < shape.context
    assert of(longest, concurrency, shape).total <= DEVICE.limit_bytes < of(longest + 32, concurrency, shape).total


def test_the_most_requests_fit_and_one_more_does_not() -> None:
    most = largest_concurrency(SHAPE, DEVICE, 8192, 1024, 2048)
    assert of(8192, most).total <= DEVICE.limit_bytes < of(8192, most + 1).total


def test_what_never_fits_and_what_always_does() -> None:
    small = replace(DEVICE, limit_bytes=4 * GIB)
    assert largest_context(SHAPE, small, 1, 2048) == largest_concurrency(SHAPE, small, 32, 8, 2048) == 0
    large = replace(DEVICE, limit_bytes=1 << 50)
    assert largest_context(replace(SHAPE, context=1000), large, 8, 2048) == 1000
    assert largest_concurrency(SHAPE, large, 32, 8, 2048) == 8
