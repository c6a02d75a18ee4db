"""What is left of a step for prefill, and how a prompt may draw on it."""

from __future__ import annotations

from mlx_server.core.step import BLOCK_SIZE
from mlx_server.services.batching.step_time import prefill_units, tokens_within


class PrefillBudget:
    """tokens: of the step's token budget. units: of the time budget (see `step_time.py`).

    A prompt that cannot finish takes at most half of what is left while others wait, so a short prompt
    behind a long one starts in the same step. The first chunk of a step makes progress however small the
    time budget is, and so does the second: one block each.
    """

    def __init__(self, tokens: int, units: float) -> None:
        self.tokens = tokens
        self._units = units
        self._forced = 2

    def chunk(self, start: int, end: int, *, others_wait: bool) -> int:
        """Tokens of [start, end) to compute in this step. Ends on a block boundary, or at `end`."""
        limit = min(self.tokens, tokens_within(self._units, start))
        if self._forced:
            limit = max(limit, min(self.tokens, BLOCK_SIZE))
        if end - start <= limit:
            return end - start
        if others_wait:
            limit = max(limit // 2, min(limit, BLOCK_SIZE))
        return max((start + limit) // BLOCK_SIZE * BLOCK_SIZE - start, 0)

    def take(self, num_tokens: int, start: int) -> None:
        """A chunk of `num_tokens` at `start` was planned."""
        self.tokens -= num_tokens
        self._units -= prefill_units(num_tokens, start)
        self._forced = max(self._forced - 1, 0)
