"""What admission takes, and that a refusal takes nothing."""

from __future__ import annotations

from mlx_server.services.batching.block_tables import BlockTables
from mlx_server.services.batching.prefix_cache import PrefixCache, root_hash
from mlx_server.services.batching.request import Request
from mlx_server.services.batching.request_queue import QueueKey
from tests.fakes.lockstep import prompt_of, request

TEXT = prompt_of(150)


def made(name: str, n: int) -> Request:
    return Request.create(request(name, TEXT[:n]), QueueKey(0.0, 1), 0.0, root_hash("m", ""), max_tokens=8)


def admitted(tables: BlockTables, name: str, n: int) -> Request:
    """Admitted, computed and committed."""
    r = made(name, n)
    assert tables.admit(r, tables.match(r)) is not None
    r.num_computed = n
    tables.commit(r)
    return r


def test_blocks_needed_is_what_admission_takes() -> None:
    tables = BlockTables(PrefixCache(12))
    blocks = tables.cache.blocks
    running = admitted(tables, "running", 64)
    tables.release(admitted(tables, "gone", 128))
    newcomer = made("new", 150)
    match = tables.match(newcomer)
    assert len(match.block_ids) == 4
    needed, before = tables.blocks_needed(newcomer, match), blocks.num_available
    assert tables.admit(newcomer, match) is not None
    assert before - blocks.num_available == needed == 3, "two blocks nobody held, and one new"
    assert blocks.ref_count(running.block_table[0]) == 2


def test_admission_without_room_changes_nothing() -> None:
    tables = BlockTables(PrefixCache(4))
    blocks = tables.cache.blocks
    tables.release(admitted(tables, "gone", 96))
    assert blocks.allocate(1) is not None
    newcomer = made("new", 150)
    before = (blocks.num_free, blocks.num_cached, blocks.num_used)
    assert tables.admit(newcomer, tables.match(newcomer)) is None
    assert (blocks.num_free, blocks.num_cached, blocks.num_used) == before
    assert newcomer.block_table == []


def test_growing_takes_a_block_only_at_a_boundary_and_says_when_there_is_none() -> None:
    tables = BlockTables(PrefixCache(2))
    r = admitted(tables, "r", 32)
    assert tables.grow(r)
    assert len(r.block_table) == 2
    r.num_computed = 63
    assert tables.grow(r)
    assert len(r.block_table) == 2
    r.num_computed = 64
    assert not tables.grow(r)
