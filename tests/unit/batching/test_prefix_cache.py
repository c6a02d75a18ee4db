"""What is found in the cache, and what must not be."""

import pytest

from mlx_server.services.batching.block_manager import BlockAccountingError
from mlx_server.services.batching.prefix_cache import Match, PrefixCache, block_hash, root_hash
from tests.fakes.lockstep import prompt_of

ROOT = root_hash("model", "")
TEXT = prompt_of(80)  # two full blocks and half of a third


def keep(cache: PrefixCache, tokens: tuple[int, ...], root: bytes = ROOT) -> list[int]:
    """Compute and commit a sequence, then let it go. Its blocks, first to last."""
    blocks = cache.blocks.allocate(-(-len(tokens) // 32))
    assert blocks is not None
    hashes: list[bytes] = []
    cache.extend_hashes(hashes, root, tokens, len(tokens) // 32)
    for i, block in enumerate(blocks):
        own = hashes[i] if i < len(hashes) else None
        cache.register(block, hashes[i - 1] if i else root, tokens[i * 32 : i * 32 + 32], own)
    cache.blocks.free(reversed(blocks))
    return blocks


def look_up(cache: PrefixCache, tokens: tuple[int, ...], root: bytes = ROOT, limit: int | None = None) -> Match:
    hashes: list[bytes] = []
    cache.extend_hashes(hashes, root, tokens, len(tokens) // 32)
    return cache.match(tokens, hashes, root, len(tokens) - 1 if limit is None else limit)


def test_an_exact_repeat_recomputes_exactly_one_token() -> None:
    for n in (1, 31, 32, 33, 64, 65, 80):
        cache = PrefixCache(4)
        keep(cache, TEXT[:n])
        assert look_up(cache, TEXT[:n]).num_tokens == n - 1, n


def test_salt_and_model_identity_are_separate_worlds() -> None:
    cache = PrefixCache(4)
    keep(cache, TEXT)
    for root in (root_hash("model", "tenant"), root_hash("other", "")):
        assert look_up(cache, TEXT, root).num_tokens == 0


def test_identity_and_salt_do_not_run_together() -> None:
    assert root_hash("model", "a") != root_hash("modela", "")
    assert root_hash("m1:x", "") != root_hash("m", "1:x")


def test_the_same_tokens_at_another_offset_do_not_hit() -> None:
    cache = PrefixCache(8)
    keep(cache, TEXT)
    shifted = (5, *TEXT)
    assert look_up(cache, shifted).num_tokens == 0
    second_block_first = TEXT[32:64] + TEXT[:32]
    assert look_up(cache, second_block_first).num_tokens == 0
    assert block_hash(ROOT, TEXT[:32]) != block_hash(block_hash(ROOT, TEXT[:32]), TEXT[:32])


def test_a_partial_match_is_the_longest_common_start() -> None:
    cache = PrefixCache(8)
    keep(cache, TEXT[:32] + TEXT[32:40] + prompt_of(24, seed=1))
    best = keep(cache, TEXT[:32] + TEXT[32:55] + prompt_of(9, seed=2))
    keep(cache, TEXT[:32] + TEXT[32:47] + prompt_of(17, seed=3))
    found = look_up(cache, TEXT[:64])
    assert found.num_tokens == 55
    assert found.tail_block == best[1]
    assert found.tail_tokens == 23


def test_a_part_filled_block_is_only_a_tail_source() -> None:
    cache = PrefixCache(4)
    blocks = keep(cache, TEXT)
    found = look_up(cache, TEXT + prompt_of(40, seed=1))
    assert found.block_ids == blocks[:2]
    assert (found.tail_block, found.tail_tokens) == (blocks[2], 16)


def test_a_match_behind_a_missing_parent_is_none() -> None:
    """Its block is still there; its K/V is right only behind the parent's, which nobody has."""
    cache = PrefixCache(4)
    first, second, _ = keep(cache, TEXT)
    cache.invalidate(first)
    assert look_up(cache, TEXT).block_ids == []
    assert cache.blocks.is_cached(second)
    again = cache.blocks.allocate(1)
    assert again is not None
    cache.register(again[0], ROOT, TEXT[:32], block_hash(ROOT, TEXT[:32]))
    assert look_up(cache, TEXT).block_ids == [again[0], second]


def test_the_limit_is_never_passed() -> None:
    cache = PrefixCache(4)
    keep(cache, TEXT)
    for limit in (0, 1, 31, 32, 40, 64, 70, 80):
        assert look_up(cache, TEXT, limit=limit).num_tokens == limit


def test_a_second_copy_stays_private() -> None:
    cache = PrefixCache(4)
    first = keep(cache, TEXT[:32])
    keep(cache, TEXT[:32])
    assert len(cache) == 1
    assert look_up(cache, TEXT).block_ids == first
    assert cache.blocks.num_free == 3


def test_evicted_content_is_not_found() -> None:
    cache = PrefixCache(3)
    keep(cache, TEXT)
    taken = cache.blocks.allocate(1)
    assert taken is not None
    assert look_up(cache, TEXT).num_tokens == 64, "the deepest block of the chain goes first"
    assert cache.blocks.allocate(2) is not None
    assert look_up(cache, TEXT).num_tokens == 0
    assert len(cache) == 0


def test_invalidated_content_is_not_found_and_its_block_is_free() -> None:
    cache = PrefixCache(3)
    blocks = keep(cache, TEXT[:64])
    cache.invalidate(blocks[1])
    assert look_up(cache, TEXT[:64]).num_tokens == 32
    assert cache.blocks.num_free == 2


def test_content_invalidated_in_use_is_free_after_its_last_reference() -> None:
    cache = PrefixCache(2)
    (block,) = keep(cache, TEXT[:32])
    cache.blocks.acquire(block)
    cache.invalidate(block)
    cache.blocks.free([block])
    assert (cache.blocks.num_free, cache.blocks.num_cached) == (2, 0)


def test_clear_forgets_what_nobody_uses() -> None:
    cache = PrefixCache(4)
    first, *_ = keep(cache, TEXT)
    cache.blocks.acquire(first)
    assert cache.clear() == 2
    assert look_up(cache, TEXT).block_ids == [first]


def test_disabled_finds_and_keeps_nothing() -> None:
    cache = PrefixCache(4, enabled=False)
    keep(cache, TEXT)
    assert look_up(cache, TEXT) == Match([], None, 0)
    assert cache.blocks.num_free == 4


def test_registering_a_block_twice_is_refused() -> None:
    cache = PrefixCache(2)
    blocks = cache.blocks.allocate(1)
    assert blocks is not None
    cache.register(blocks[0], ROOT, TEXT[:32], block_hash(ROOT, TEXT[:32]))
    with pytest.raises(BlockAccountingError, match=f"block {blocks[0]} is registered already"):
        cache.register(blocks[0], ROOT, TEXT[:5], None)
