"""Block tables of running requests: matched at admission, grown ahead of the tokens, committed, released.

The rules of `core/step.py` seen from the host: physical blocks are reserved when a step is planned, the
K/V of new tokens gathers in the row's tail, and a commit moves the tail's full blocks into the reserved
blocks. A committed block is findable from the moment its commit is planned, because plans are executed
in order; `undo_commits` takes that back when a step failed before its commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mlx_server.core.step import BLOCK_SIZE, Commit, Join
from mlx_server.services.batching.prefix_cache import Match, PrefixCache
from mlx_server.services.batching.request import Request, blocks_for


class BlockTables:
    """Changes the block fields of requests; nobody else does."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.blocks_hashed = 0  # in total; what a match costs on the host
        self._pending: dict[bytes, str] = {}  # hash of a block being prefilled -> who computes it

    def match(self, request: Request) -> Match:
        """What the cache has of the request now. At least one token is left to compute."""
        full_blocks = len(request.tokens) // BLOCK_SIZE
        self.blocks_hashed += full_blocks - len(request.block_hashes)
        self.cache.extend_hashes(request.block_hashes, request.root_hash, request.tokens, full_blocks)
        return self.cache.match(request.tokens, request.block_hashes, request.root_hash, len(request.tokens) - 1)

    def match_unless_awaited(self, request: Request) -> Match | None:
        """`match`, or None while a running prefill computes the first block it lacks: better to wait for that twin
        than to repeat it. Asking again while the same block is awaited is O(1).
        """
        if request.awaited_hash is not None and request.awaited_hash in self._pending:
            return None
        match = self.match(request)
        missing = len(match.block_ids)
        if (missing + 1) * BLOCK_SIZE > len(request.tokens) - 1:
            return match
        lacking = request.block_hashes[missing]
        request.awaited_hash = lacking if lacking in self._pending else None
        return match if request.awaited_hash is None else None

    def blocks_needed(self, request: Request, match: Match) -> int:
        """Blocks that admission takes out of `num_available`: new ones, and matched ones nobody held."""
        revived = sum(self.cache.blocks.is_cached(b) for b in match.block_ids)
        return blocks_for(len(request.tokens)) - len(match.block_ids) + revived

    def admit(self, request: Request, match: Match) -> Join | None:
        """Give the request its blocks for every token known; None: no room, and nothing has changed."""
        blocks = self.cache.blocks
        for block in match.block_ids:
            blocks.acquire(block)
        new = blocks.allocate(blocks_for(len(request.tokens)) - len(match.block_ids))
        if new is None:
            blocks.free(reversed(match.block_ids))
            return None
        request.block_table = [*match.block_ids, *new]
        request.num_committed = len(match.block_ids) * BLOCK_SIZE
        request.num_computed = match.num_tokens
        if self.cache.enabled:
            for own_hash in request.block_hashes[len(match.block_ids) :]:
                self._pending.setdefault(own_hash, request.request_id)
        tail_source = None
        if match.tail_block is not None:
            blocks.touch(match.tail_block)
            tail_source = (match.tail_block, match.tail_tokens)
        return Join(
            request_id=request.request_id,
            sampling=request.sampling,
            block_ids=tuple(match.block_ids),
            tail_source=tail_source,
            history=tuple(request.tokens),
            num_prompt_tokens=request.num_prompt_tokens,
        )

    def grow(self, request: Request) -> bool:
        """Reserve the block of position `num_computed`; False: no room."""
        if request.num_computed < len(request.block_table) * BLOCK_SIZE:
            return True
        new = self.cache.blocks.allocate(1)
        if new is None:
            return False
        request.block_table.extend(new)
        return True

    def commit(self, request: Request, *, final: bool = False) -> Commit | None:
        """Plan to write the tail's full blocks; with `final` a part-filled last one too, as a tail source.

        None when there is nothing to write. Every position computed has its token known here: a step is
        planned only after the results of all but the one before it are in.
        """
        known = min(request.num_computed, len(request.tokens))
        end = known if final else known - known % BLOCK_SIZE
        start = request.num_committed
        if end <= start or (final and not self.cache.enabled):
            return None
        block_ids = tuple(request.block_table[start // BLOCK_SIZE : blocks_for(end)])
        self.cache.extend_hashes(request.block_hashes, request.root_hash, request.tokens, end // BLOCK_SIZE)
        for i, block in enumerate(block_ids, start // BLOCK_SIZE):
            self._register(request, i, block, end)
        request.num_committed = end
        return Commit(request.request_id, block_ids, end - start)

    def _register(self, request: Request, index: int, block: int, end: int) -> None:
        parent = request.block_hashes[index - 1] if index else request.root_hash
        first = index * BLOCK_SIZE
        tokens = request.tokens[first : min(first + BLOCK_SIZE, end)]
        own_hash = request.block_hashes[index] if len(tokens) == BLOCK_SIZE else None
        self.cache.register(block, parent, tokens, own_hash)
        if own_hash is not None and self._pending.get(own_hash) == request.request_id:
            del self._pending[own_hash]

    def release(self, request: Request) -> None:
        """Drop every block of the request; the committed ones stay findable until evicted."""
        self.cache.blocks.free(reversed(request.block_table))
        request.block_table = []
        request.num_committed = 0
        request.num_computed = 0
        for own_hash in request.block_hashes:
            if self._pending.get(own_hash) == request.request_id:
                del self._pending[own_hash]

    def move(self, requests: Iterable[Request], moves: Mapping[int, int]) -> None:
        """The pool has been resized: blocks of these requests lie elsewhere."""
        for request in requests:
            request.block_table = [moves.get(block, block) for block in request.block_table]

    def undo_commits(self, commits: Iterable[Commit]) -> None:
        """The step failed before its commits: what they promised is not in the pool."""
        for commit in commits:
            for block in commit.block_ids:
                self.cache.invalidate(block)
