"""How many blocks the pool gets, and what a person is told when that is too few."""

from types import SimpleNamespace

import mlx.core as mx
import psutil
import pytest

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.settings import Settings
from mlx_server.core.step import BLOCK_SIZE
from mlx_server.runner import memory
from mlx_server.runner.memory import GIB, kept_limit, pool_blocks

PER_TOKEN = 1024
PER_BLOCK = PER_TOKEN * BLOCK_SIZE


def settings(**fields: object) -> Settings:
    return Settings(**fields)  # type: ignore[arg-type]


def machine(monkeypatch: pytest.MonkeyPatch, working_set: int | None, available: int = 64 * GIB) -> None:
    about = {"device_name": "x"} | ({} if working_set is None else {"max_recommended_working_set_size": working_set})
    monkeypatch.setattr(mx, "device_info", lambda *_: about)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))


def test_a_number_of_blocks_is_taken_as_it_is() -> None:
    assert pool_blocks(settings(kv_blocks=5), PER_TOKEN, 0, 100_000) == 5
    assert pool_blocks(settings(kv_blocks=5, kv_memory="8GB"), PER_TOKEN, 0, 100_000) == 5


@pytest.mark.parametrize("blocks", [8, 9, 1000])
def test_memory_is_divided_into_whole_blocks(blocks: int) -> None:
    for spare in (0, 1, PER_BLOCK - 1):
        size = max(blocks * PER_BLOCK + spare, 1 << 20)
        assert pool_blocks(settings(kv_memory=size), PER_TOKEN, 0, 10) == size // PER_BLOCK


def test_memory_asked_for_is_not_cut_to_the_context() -> None:
    assert pool_blocks(settings(kv_memory="1GB"), PER_TOKEN, 0, 32) == GIB // PER_BLOCK


def test_metal_gives_a_share_of_the_working_set_less_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 10 * GIB)
    assert pool_blocks(settings(), PER_TOKEN, 3 * GIB, 10**9) == int(0.8 * 10 * GIB - 3 * GIB) // PER_BLOCK


def test_the_cpu_gives_a_share_of_what_is_available_up_to_a_gigabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, None, available=2 * GIB)
    assert pool_blocks(settings(), PER_TOKEN, 3 * GIB, 10**9) == int(0.2 * 2 * GIB) // PER_BLOCK
    machine(monkeypatch, None, available=64 * GIB)
    assert pool_blocks(settings(), PER_TOKEN, 3 * GIB, 10**9) == GIB // PER_BLOCK


def test_by_default_no_more_than_16_full_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 100 * GIB)
    assert pool_blocks(settings(), PER_TOKEN, 0, 4096) == 16 * 4096 // BLOCK_SIZE


@pytest.mark.parametrize("weights", [7.8, 8.5, 30])
def test_too_little_memory_is_refused_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch, weights: float) -> None:
    machine(monkeypatch, 10 * GIB)
    block_bytes = 64 << 20
    with pytest.raises(ModelLoadError) as caught:
        pool_blocks(settings(), block_bytes // BLOCK_SIZE, int(weights * GIB), 131_072)
    text = str(caught.value)
    assert f"{8 - weights:.2f} GB" in text
    assert f"{max(0, int((8 - weights) * 16))} blocks of 64.0 MB" in text
    assert "at least 8 are needed" in text
    assert f"{weights:.2f} GB of weights" in text
    assert "--kv-memory" in text


def test_eight_blocks_are_enough() -> None:
    with pytest.raises(ModelLoadError, match="holds 7 blocks"):
        pool_blocks(settings(kv_memory=8 * (1 << 20) - 1), (1 << 20) // BLOCK_SIZE, 0, 4096)
    assert pool_blocks(settings(kv_memory=8 << 20), (1 << 20) // BLOCK_SIZE, 0, 4096) == 8


def test_the_default_pool_always_holds_a_short_context(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 10 * GIB)
    assert pool_blocks(settings(), PER_TOKEN, 0, 16) * BLOCK_SIZE == 256


def test_the_buffer_cache_is_bounded_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(mx, "set_cache_limit", limits.append)
    for pool in (0, GIB, 100 * GIB):
        memory.limit_buffer_cache(pool)
    assert limits == [GIB // 4, GIB, 2 * GIB]


def test_kept_gathers_are_a_bounded_share_of_the_pool() -> None:
    assert 0 < kept_limit(1600) <= 1600 // 8
    assert kept_limit(0) == 0
