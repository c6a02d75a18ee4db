"""The prefix cache: which block holds which tokens, by chained hashes.

The hash of a full block is blake2b-128 of its parent's hash and its 32 token ids, rooted in the model's
identity and the request's salt; so equal hashes mean equal prefixes, whatever the offset (the chaining
is that of vLLM's automatic prefix caching). Only full blocks are ever shared. Beside them the cache
keeps, per parent, what its children start with: the child with the longest common start is a source from
which a row's tail is copied, so reuse is token-granular though blocks are 32.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from mlx_server.core.step import BLOCK_SIZE
from mlx_server.services.batching.block_manager import BlockAccountingError, PagedBlockManager

MAX_CANDIDATES = 64
"""Children compared for the longest common start, most recent first: bounds the work of a match."""


def root_hash(model_identity: str, salt: str) -> bytes:
    """The parent of a first block. Lengths are hashed too, so that no two pairs run together."""
    head = f"{len(model_identity)}:{model_identity}{len(salt)}:{salt}"
    return blake2b(head.encode(), digest_size=16).digest()


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash of a full block under its parent; `tokens` are BLOCK_SIZE ids below 2**32."""
    return blake2b(parent + array("I", tokens).tobytes(), digest_size=16).digest()


@dataclass(slots=True, frozen=True)
class Match:
    """What the cache has of a prompt: full blocks, then `tail_tokens` at the start of `tail_block`."""

    block_ids: list[int]
    tail_block: int | None
    tail_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens that need not be computed."""
        return len(self.block_ids) * BLOCK_SIZE + self.tail_tokens


@dataclass(slots=True, frozen=True)
class _Entry:
    parent: bytes
    tokens: tuple[int, ...]
    own_hash: bytes | None  # None: part-filled, only ever a tail source


class PrefixCache:
    """Index over the content of a `PagedBlockManager`'s blocks, and the manager itself."""

    def __init__(self, num_blocks: int, *, enabled: bool = True) -> None:
        self.blocks = PagedBlockManager(num_blocks, self._forget)
        self.enabled = enabled
        self._by_hash: dict[bytes, int] = {}
        self._entries: dict[int, _Entry] = {}
        self._children: dict[bytes, dict[int, dict[int, None]]] = {}  # parent -> first token -> block ids

    def __len__(self) -> int:
        return len(self._entries)

    def extend_hashes(self, hashes: list[bytes], root: bytes, tokens: Sequence[int], num_blocks: int) -> None:
        """Append to `hashes` until it covers the first `num_blocks` blocks of `tokens`."""
        while len(hashes) < num_blocks:
            start = len(hashes) * BLOCK_SIZE
            parent = hashes[-1] if hashes else root
            hashes.append(block_hash(parent, tokens[start : start + BLOCK_SIZE]))

    def match(self, tokens: Sequence[int], hashes: list[bytes], root: bytes, limit: int) -> Match:
        """The longest cached start of `tokens`, at most `limit` tokens. Takes no reference."""
        if not self.enabled:
            return Match([], None, 0)
        block_ids: list[int] = []
        for own_hash in hashes[: limit // BLOCK_SIZE]:
            block = self._by_hash.get(own_hash)
            if block is None:
                break
            block_ids.append(block)
        matched = len(block_ids)
        parent = hashes[matched - 1] if matched else root
        start = matched * BLOCK_SIZE
        tail_block, tail_tokens = self._best_child(parent, tokens[start : min(start + BLOCK_SIZE, limit)])
        return Match(block_ids, tail_block, tail_tokens)

    def _best_child(self, parent: bytes, wanted: Sequence[int]) -> tuple[int | None, int]:
        if not wanted:
            return None, 0
        candidates = self._children.get(parent, {}).get(wanted[0], {})
        best: tuple[int | None, int] = (None, 0)
        for _, block in zip(range(MAX_CANDIDATES), reversed(candidates), strict=False):
            common = _common_start(self._entries[block].tokens, wanted)
            if common > best[1]:
                best = (block, common)
                if common == len(wanted):
                    break
        return best

    def register(self, block_id: int, parent: bytes, tokens: Sequence[int], own_hash: bytes | None) -> None:
        """The content of a held block becomes findable. A second copy of known content stays private.

        own_hash: of a full block; None for a part-filled one.
        """
        if block_id in self._entries:
            raise BlockAccountingError(f"block {block_id} is registered already")
        if not self.enabled or not tokens or self._is_known(parent, tokens, own_hash):
            return
        self.blocks.mark_content(block_id)
        self._entries[block_id] = _Entry(parent, tuple(tokens), own_hash)
        if own_hash is not None:
            self._by_hash[own_hash] = block_id
        self._children.setdefault(parent, {}).setdefault(tokens[0], {})[block_id] = None

    def _is_known(self, parent: bytes, tokens: Sequence[int], own_hash: bytes | None) -> bool:
        if own_hash is not None:
            return own_hash in self._by_hash
        return self._best_child(parent, tokens)[1] == len(tokens)

    def invalidate(self, block_id: int) -> None:
        """The content was never written (a failed step): forget it."""
        if block_id in self._entries:
            self._forget(block_id)
            self.blocks.drop_content(block_id)

    def clear(self) -> int:
        """Forget every block that nobody uses; how many there were."""
        dropped = 0
        while (block := self.blocks.oldest_cached()) is not None:
            self.invalidate(block)
            dropped += 1
        return dropped

    def evict_to(self, num_blocks: int) -> None:
        """Forget the least recently used blocks that nobody holds, until at most `num_blocks` have content or
        holders, if that can be.
        """
        blocks = self.blocks
        while blocks.num_used + blocks.num_cached > num_blocks and (block := blocks.oldest_cached()) is not None:
            self.invalidate(block)
            blocks.evictions += 1

    def resize(self, num_blocks: int, moves: Sequence[tuple[int, int]]) -> None:
        """The pool has another size, and the content of some blocks has moved."""
        self.blocks.resize(num_blocks, moves)
        moved = dict(moves)
        self._by_hash = {own_hash: moved.get(b, b) for own_hash, b in self._by_hash.items()}
        self._entries = {moved.get(b, b): entry for b, entry in self._entries.items()}
        for firsts in self._children.values():
            for first, ids in firsts.items():
                firsts[first] = {moved.get(b, b): None for b in ids}

    def _forget(self, block_id: int) -> None:
        entry = self._entries.pop(block_id)
        if entry.own_hash is not None:
            del self._by_hash[entry.own_hash]
        siblings = self._children[entry.parent]
        same_start = siblings[entry.tokens[0]]
        del same_start[block_id]
        if not same_start:
            del siblings[entry.tokens[0]]
            if not siblings:
                del self._children[entry.parent]

    def check_invariants(self) -> None:
        """Raise `BlockAccountingError` unless index and manager agree. O(num_blocks)."""
        self.blocks.check_invariants()
        for block in range(self.blocks.num_blocks):
            if self.blocks.is_cached(block) and block not in self._entries:
                raise BlockAccountingError(f"block {block} is cached but cannot be found")
        for own_hash, block in self._by_hash.items():
            if self._entries[block].own_hash != own_hash:
                raise BlockAccountingError(f"block {block} is found under another block's hash")
        indexed = {b for firsts in self._children.values() for ids in firsts.values() for b in ids}
        if indexed != set(self._entries):
            raise BlockAccountingError("the index of children and the entries disagree")


def _common_start(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
