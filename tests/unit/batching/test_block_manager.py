"""Who holds which block, and what happens at the first wrong count."""

import pytest

from mlx_server.services.batching.block_manager import BlockAccountingError, PagedBlockManager


def manager(num_blocks: int = 4) -> tuple[PagedBlockManager, list[int]]:
    evicted: list[int] = []
    return PagedBlockManager(num_blocks, evicted.append), evicted


def cache(blocks: PagedBlockManager, n: int) -> list[int]:
    """`n` blocks that end up cached, in this order."""
    got = blocks.allocate(n)
    assert got is not None
    for block in got:
        blocks.mark_content(block)
    blocks.free(got)
    return got


def test_double_free_names_the_block() -> None:
    blocks, _ = manager()
    got = blocks.allocate(2)
    assert got is not None
    blocks.free(got)
    with pytest.raises(BlockAccountingError, match=f"block {got[1]} is freed more often"):
        blocks.free([got[1]])


def test_a_double_free_of_a_cached_block_is_one_too() -> None:
    blocks, _ = manager()
    (block,) = cache(blocks, 1)
    with pytest.raises(BlockAccountingError, match=f"block {block} "):
        blocks.free([block])


def test_no_room_is_none_and_changes_nothing() -> None:
    blocks, evicted = manager(3)
    cache(blocks, 1)
    assert blocks.allocate(1) is not None
    before = (blocks.num_free, blocks.num_cached, blocks.num_used)
    assert blocks.allocate(3) is None
    assert (blocks.num_free, blocks.num_cached, blocks.num_used) == before
    assert evicted == []


def test_free_blocks_go_before_cached_ones_are_evicted() -> None:
    blocks, evicted = manager(4)
    cache(blocks, 2)
    assert blocks.allocate(2) is not None
    assert evicted == []
    assert blocks.num_cached == 2


def test_eviction_takes_the_least_recently_used_and_reports_each() -> None:
    blocks, evicted = manager(3)
    a, b, c = cache(blocks, 3)
    blocks.touch(a)
    blocks.acquire(b)
    blocks.free([b])
    assert blocks.oldest_cached() == c
    assert blocks.allocate(2) is not None
    assert evicted == [c, a]
    assert blocks.evictions == 2


def test_a_block_in_use_is_never_evicted() -> None:
    blocks, evicted = manager(2)
    a, b = cache(blocks, 2)
    blocks.acquire(a)
    assert blocks.allocate(2) is None
    assert blocks.allocate(1) == [b]
    assert evicted == [b]


def test_a_block_stays_until_its_last_reference_goes() -> None:
    blocks, _ = manager()
    (block,) = cache(blocks, 1)
    blocks.acquire(block)
    blocks.acquire(block)
    blocks.free([block])
    assert (blocks.ref_count(block), blocks.num_cached) == (1, 0)
    blocks.free([block])
    assert (blocks.ref_count(block), blocks.num_cached) == (0, 1)


def test_an_evicted_block_has_no_content_any_more() -> None:
    blocks, _ = manager(1)
    (block,) = cache(blocks, 1)
    assert blocks.allocate(1) == [block]
    with pytest.raises(BlockAccountingError, match=f"block {block} has no shared content"):
        blocks.acquire(block)
    blocks.free([block])
    assert (blocks.num_free, blocks.num_cached) == (1, 0)


def test_content_of_a_block_nobody_holds_is_refused() -> None:
    blocks, _ = manager()
    with pytest.raises(BlockAccountingError, match="block 2 is not held"):
        blocks.mark_content(2)


def test_check_invariants_sees_a_block_in_two_places() -> None:
    blocks, _ = manager()
    assert blocks.allocate(1) is not None
    blocks._free.append(blocks._free[0])
    with pytest.raises(BlockAccountingError):
        blocks.check_invariants()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        PagedBlockManager(0, lambda block: None)
