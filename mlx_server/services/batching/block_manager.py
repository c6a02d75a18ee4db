"""`PagedBlockManager`: who holds which physical KV block.

A block is in exactly one of three places: free; used (reference count above 0); or cached (count 0, its
content findable by the prefix cache), in least-recently-used order. Accounting fails at the first wrong
count: a double free is an exception that names the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockAccountingError(RuntimeError):
    """A block was freed, acquired or cached in a state that does not allow it."""


class PagedBlockManager:
    """Every operation but a resize is O(1) per block.

    on_evict: called with a block id when a cached block is taken for other content.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self.evictions = 0
        self._on_evict = on_evict
        self._refs = [0] * num_blocks
        self._has_content = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks with findable content that nobody uses."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - self.num_available

    def ref_count(self, block_id: int) -> int:
        """How many rows hold the block."""
        return self._refs[block_id]

    def is_cached(self, block_id: int) -> bool:
        """Whether it is in the LRU list: content, and no reference."""
        return block_id in self._cached

    def allocate(self, n: int) -> list[int] | None:
        """`n` blocks with one reference each, evicting the least recently used; None: no room."""
        if n > len(self._free) + len(self._cached):
            return None
        blocks = []
        for _ in range(n):
            if self._free:
                block = self._free.pop()
            else:
                block, _none = self._cached.popitem(last=False)
                self._has_content[block] = 0
                self.evictions += 1
                self._on_evict(block)
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def acquire(self, block_id: int) -> None:
        """One more reference to a block with content: a prefix hit."""
        if not self._has_content[block_id]:
            raise BlockAccountingError(f"block {block_id} has no shared content to acquire")
        if self._refs[block_id] == 0:
            del self._cached[block_id]
        self._refs[block_id] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Drop one reference each. A block nobody uses becomes cached if it has content, else free.

        Pass a row's blocks last to first: of one chain, the deepest is then evicted first, and a
        block never outlives its parent in the cache for long.
        """
        for block in block_ids:
            if self._refs[block] <= 0:
                raise BlockAccountingError(f"block {block} is freed more often than it was acquired")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._has_content[block]:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def mark_content(self, block_id: int) -> None:
        """The prefix cache can find this block's content: it outlives its last reference."""
        if self._refs[block_id] <= 0:
            raise BlockAccountingError(f"block {block_id} is not held, so it cannot be given content")
        self._has_content[block_id] = 1

    def drop_content(self, block_id: int) -> None:
        """The content is no longer findable; a cached block becomes free."""
        self._has_content[block_id] = 0
        if block_id in self._cached:
            del self._cached[block_id]
            self._free.append(block_id)

    def touch(self, block_id: int) -> None:
        """A cached block was read: it becomes the most recently used."""
        if block_id in self._cached:
            self._cached.move_to_end(block_id)

    def oldest_cached(self) -> int | None:
        """The block that would be evicted next."""
        return next(iter(self._cached), None)

    def moves_for(self, num_blocks: int) -> tuple[tuple[int, int], ...] | None:
        """(from, to) of the blocks with content or holders that would be cut off; None: they do not fit into
        `num_blocks`. Nothing changes.
        """
        if self.num_used + self.num_cached > num_blocks:
            return None
        behind = (b for b in range(num_blocks, self.num_blocks) if self._refs[b] or self._has_content[b])
        return tuple(zip(behind, sorted(b for b in self._free if b < num_blocks), strict=False))

    def resize(self, num_blocks: int, moves: Iterable[tuple[int, int]]) -> None:
        """Grow, or cut the end off after `moves` (see `moves_for`)."""
        for source, target in moves:
            if self._refs[target] or self._has_content[target]:
                raise BlockAccountingError(f"block {source} cannot move to block {target}, which is not free")
            self._refs[target], self._refs[source] = self._refs[source], 0
            self._has_content[target], self._has_content[source] = self._has_content[source], 0
        moved = dict(moves)
        self._cached = OrderedDict((moved.get(b, b), None) for b in self._cached)
        for block in range(num_blocks, self.num_blocks):
            if self._refs[block] or self._has_content[block]:
                raise BlockAccountingError(f"block {block} is in use and would be cut off")
        more = max(0, num_blocks - self.num_blocks)
        self._refs = self._refs[:num_blocks] + [0] * more
        self._has_content = self._has_content[:num_blocks] + bytearray(more)
        self.num_blocks = num_blocks
        self._free = [b for b in range(num_blocks - 1, -1, -1) if not self._refs[b] and not self._has_content[b]]

    def check_invariants(self) -> None:
        """Raise `BlockAccountingError` unless every block is in exactly one place. O(num_blocks)."""
        free, cached = set(self._free), set(self._cached)
        used = {b for b in range(self.num_blocks) if self._refs[b] > 0}
        if len(free) != len(self._free):
            raise BlockAccountingError("a block is in the free list twice")
        if free & cached or free & used or cached & used or len(free | cached | used) != self.num_blocks:
            raise BlockAccountingError("a block is in two places, or in none")
        if any(self._has_content[b] for b in free) or not all(self._has_content[b] for b in cached):
            raise BlockAccountingError("content flag and place disagree")
