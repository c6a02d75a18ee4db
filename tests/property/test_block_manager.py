"""Blocks are free, used or cached, and nothing else, after any sequence of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlx_server.services.batching.block_manager import BlockAccountingError, PagedBlockManager

pick = st.integers(0, 1000)


class BlockManagerMachine(RuleBasedStateMachine):
    """The model: a list of held references, the set of blocks with content, and the cached ones in order."""

    @initialize(num_blocks=st.integers(1, 9))
    def start(self, num_blocks: int) -> None:
        self.evicted: list[int] = []
        self.blocks = PagedBlockManager(num_blocks, self.evicted.append)
        self.held: list[int] = []
        self.content: set[int] = set()
        self.cached: list[int] = []  # least recently used first

    @rule(n=st.integers(0, 5))
    def allocate(self, n: int) -> None:
        free = self.blocks.num_blocks - len(set(self.held)) - len(self.cached)
        already = len(self.evicted)
        got = self.blocks.allocate(n)
        if n > free + len(self.cached):
            assert got is None
            assert len(self.evicted) == already
            return
        assert got is not None
        assert len(set(got)) == n
        assert not set(got) & set(self.held)
        oldest = self.cached[: max(n - free, 0)]
        assert self.evicted[already:] == oldest, "the least recently used go, and only as many as needed"
        self.cached = self.cached[len(oldest) :]
        self.content -= set(oldest)
        self.held += got

    @precondition(lambda self: self.held)
    @rule(which=pick)
    def free(self, which: int) -> None:
        block = self.held.pop(which % len(self.held))
        self.blocks.free([block])
        if block not in self.held and block in self.content:
            self.cached.append(block)

    @rule(which=pick)
    def free_what_nobody_holds(self, which: int) -> None:
        block = which % self.blocks.num_blocks
        if block not in self.held:
            with pytest.raises(BlockAccountingError, match=f"block {block} "):
                self.blocks.free([block])

    @rule(which=pick)
    def acquire(self, which: int) -> None:
        block = which % self.blocks.num_blocks
        if block not in self.content:
            with pytest.raises(BlockAccountingError, match=f"block {block} "):
                self.blocks.acquire(block)
            return
        self.blocks.acquire(block)
        self.held.append(block)
        if block in self.cached:
            self.cached.remove(block)

    @rule(which=pick)
    def mark_content(self, which: int) -> None:
        block = which % self.blocks.num_blocks
        if block not in self.held:
            with pytest.raises(BlockAccountingError, match=f"block {block} "):
                self.blocks.mark_content(block)
            return
        self.blocks.mark_content(block)
        self.content.add(block)

    @rule(which=pick)
    def drop_content(self, which: int) -> None:
        block = which % self.blocks.num_blocks
        self.blocks.drop_content(block)
        self.content.discard(block)
        if block in self.cached:
            self.cached.remove(block)

    @rule(which=pick)
    def touch(self, which: int) -> None:
        block = which % self.blocks.num_blocks
        self.blocks.touch(block)
        if block in self.cached:
            self.cached.remove(block)
            self.cached.append(block)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "blocks"):
            return
        blocks = self.blocks
        blocks.check_invariants()
        assert blocks.num_used == len(set(self.held))
        assert blocks.num_cached == len(self.cached)
        assert blocks.num_free + blocks.num_cached == blocks.num_available
        assert blocks.oldest_cached() == (self.cached[0] if self.cached else None)
        assert blocks.evictions == len(self.evicted)
        for block in range(blocks.num_blocks):
            assert blocks.ref_count(block) == self.held.count(block)
            assert blocks.is_cached(block) == (block in self.cached)


TestBlockManager = BlockManagerMachine.TestCase
TestBlockManager.settings = settings(deadline=None, derandomize=True, max_examples=80, stateful_step_count=50)
