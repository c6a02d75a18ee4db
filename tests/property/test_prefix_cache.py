"""The prefix cache against a dictionary of prefixes that is searched from end to end."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mlx_server.core.step import BLOCK_SIZE
from mlx_server.services.batching.prefix_cache import PrefixCache, root_hash

ROOTS = [root_hash("model", ""), root_hash("model", "tenant"), root_hash("other", "")]

# A block is a letter, or two letters and the place where the second begins: shared starts of every length.
pieces = st.one_of(
    st.sampled_from("ab").map(lambda a: a * BLOCK_SIZE),
    st.tuples(st.sampled_from("ab"), st.integers(1, BLOCK_SIZE - 1), st.sampled_from("abc")).map(
        lambda t: t[0] * t[1] + t[2] * (BLOCK_SIZE - t[1])
    ),
)
texts = st.tuples(st.lists(pieces, max_size=4), st.integers(0, 40)).map(
    lambda t: [ord(c) for c in "".join(t[0])][: max(1, len("".join(t[0])) - t[1])] or [ord("a")]
)
roots = st.integers(0, len(ROOTS) - 1)
pick = st.integers(0, 1000)


class PrefixCacheMachine(RuleBasedStateMachine):
    """The model: block id -> (root, every token from the first up to the block's last)."""

    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.cache = PrefixCache(num_blocks)
        self.known: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.held: list[list[int]] = []

    def full_block(self, root: int, prefix: tuple[int, ...]) -> int | None:
        return next((b for b, entry in self.known.items() if entry == (root, prefix)), None)

    def sync_evictions(self) -> None:
        for block in list(self.known):
            if self.cache.blocks.ref_count(block) == 0 and not self.cache.blocks.is_cached(block):
                del self.known[block]

    @rule(root=roots, tokens=texts)
    def compute(self, root: int, tokens: list[int]) -> None:
        """A sequence is computed from scratch and committed, the part-filled block at its end too."""
        count = -(-len(tokens) // BLOCK_SIZE)
        blocks = self.cache.blocks.allocate(count)
        if blocks is None:
            return
        for block in blocks:
            self.known.pop(block, None)  # evicted
        hashes: list[bytes] = []
        self.cache.extend_hashes(hashes, ROOTS[root], tokens, len(tokens) // BLOCK_SIZE)
        for i, block in enumerate(blocks):
            prefix = tuple(tokens[: (i + 1) * BLOCK_SIZE])
            parent = hashes[i - 1] if i else ROOTS[root]
            own = hashes[i] if i < len(hashes) else None
            self.cache.register(block, parent, prefix[i * BLOCK_SIZE :], own)
            if not (self.has_start(root, prefix) if own is None else self.full_block(root, prefix) is not None):
                self.known[block] = (root, prefix)
        self.held.append(blocks)

    def has_start(self, root: int, prefix: tuple[int, ...]) -> bool:
        """Whether some block of this parent starts with the part-filled block's tokens already."""
        last = -(-len(prefix) // BLOCK_SIZE) * BLOCK_SIZE
        return any(
            of == root and len(prefix) <= len(other) <= last and other[: len(prefix)] == prefix
            for of, other in self.known.values()
        )

    @precondition(lambda self: self.held)
    @rule(which=pick)
    def end(self, which: int) -> None:
        self.cache.blocks.free(reversed(self.held.pop(which % len(self.held))))

    @rule(root=roots, tokens=texts, spare=st.integers(0, 2))
    def match(self, root: int, tokens: list[int], spare: int) -> None:
        limit = max(len(tokens) - spare, 0)
        hashes: list[bytes] = []
        self.cache.extend_hashes(hashes, ROOTS[root], tokens, len(tokens) // BLOCK_SIZE)
        found = self.cache.match(tokens, hashes, ROOTS[root], limit)

        expected: list[int] = []
        while (end := (len(expected) + 1) * BLOCK_SIZE) <= limit:
            block = self.full_block(root, tuple(tokens[:end]))
            if block is None:
                break
            expected.append(block)
        assert found.block_ids == expected

        start = len(expected) * BLOCK_SIZE
        wanted = tokens[start : min(start + BLOCK_SIZE, limit)]
        starts = {
            block: common_start(prefix[start:], wanted)
            for block, (of, prefix) in self.known.items()
            if of == root and start < len(prefix) <= start + BLOCK_SIZE and list(prefix[:start]) == tokens[:start]
        }
        assert found.tail_tokens == max(starts.values(), default=0)
        assert found.num_tokens <= limit
        if found.tail_block is not None:
            assert starts[found.tail_block] == found.tail_tokens > 0

    @rule(which=pick)
    def invalidate(self, which: int) -> None:
        block = which % self.cache.blocks.num_blocks
        self.cache.invalidate(block)
        self.known.pop(block, None)

    @rule()
    def clear(self) -> None:
        unused = self.cache.blocks.num_cached
        assert self.cache.clear() == unused
        self.sync_evictions()
        assert self.cache.blocks.num_cached == 0

    @invariant()
    def agrees_with_the_model(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check_invariants()
            assert len(self.cache) == len(self.known)


def common_start(a: tuple[int, ...], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(deadline=None, derandomize=True, max_examples=80, stateful_step_count=40)
