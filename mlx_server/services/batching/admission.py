"""Who gets a row: the head of the queue when it fits, in the place of less important ones when it must."""

from __future__ import annotations

import enum

from mlx_server.services.batching.block_tables import BlockTables
from mlx_server.services.batching.config import Counters, SchedulerConfig
from mlx_server.services.batching.plan_draft import PlanDraft
from mlx_server.services.batching.pool_size import PoolSize
from mlx_server.services.batching.prefix_cache import Match
from mlx_server.services.batching.request import Request, blocks_for
from mlx_server.services.batching.request_sets import RequestSets

_LOOKAHEAD_TOKENS = 64
"""Room for answers that admission asks for; once more for every time a request was preempted."""


class Outcome(enum.Enum):
    """Of an attempt to admit the head of the queue."""

    ADMITTED = enum.auto()
    NO_ROOM = enum.auto()  # nobody behind it may pass
    WAITS_FOR_TWIN = enum.auto()  # on purpose: a running prefill computes the block it lacks


class Admission:
    """Decides; the sets and the block tables act."""

    def __init__(
        self, config: SchedulerConfig, sets: RequestSets, tables: BlockTables, counters: Counters, size: PoolSize
    ) -> None:
        self._config = config
        self._size = size
        self._sets = sets
        self._tables = tables
        self._counters = counters

    def make_room_for_head(self, draft: PlanDraft) -> None:
        """The most important waiting request may take the place of less important running ones.

        A suspect of a failed step takes that of anybody: until it is tried, nobody else may start.
        """
        request, running = self._sets.head(), self._sets.running
        if request is None or request.in_flight or not running or not self._yields(running[-1], request):
            return
        if not self._size.admits:
            return
        match = self._tables.match_unless_awaited(request)
        if match is None:
            return
        victims = [r for r in running if self._yields(r, request)]
        gain = sum(len(r.block_table) for r in victims)  # at most: some may be shared with rows that stay
        if not self._fits(request, match, gain, len(running) - len(victims)):
            return
        while running and self._yields(running[-1], request):
            rows_full = len(running) >= self._config.max_num_seqs
            if not rows_full and self._fits(request, self._tables.match(request), 0, len(running)):
                return
            self._sets.preempt(running[-1], draft)

    def _yields(self, running: Request, request: Request) -> bool:
        return request.key < running.key or self._sets.blame.candidates is not None

    def admit(self, request: Request, draft: PlanDraft, now: float) -> Outcome:
        """Give the head of the queue a row and blocks, if there is room for it.

        A request that was preempted with its last token still on the device counts as having no room.
        """
        running = self._sets.running
        if len(running) >= self._config.max_num_seqs or request.in_flight or not self._size.admits:
            return Outcome.NO_ROOM
        match = self._tables.match_unless_awaited(request)
        if match is None:
            return Outcome.WAITS_FOR_TWIN
        if (lacking := self._lacking(request, match, 0, len(running))) > 0:
            self._size.ask(lacking)
            return Outcome.NO_ROOM
        join = self._tables.admit(request, match)
        if join is None:
            return Outcome.NO_ROOM
        self._sets.start(request)
        draft.joins.append(join)
        self._count(request, now)
        return Outcome.ADMITTED

    def _fits(self, request: Request, match: Match, gain: int, rows: int) -> bool:
        return self._lacking(request, match, gain, rows) <= 0

    def _lacking(self, request: Request, match: Match, gain: int, rows: int) -> int:
        """Blocks too few for the tokens it has, some it will make, and a block for each of `rows` beside it.

        gain: blocks that would be available on top, if others left.
        """
        needed = self._tables.blocks_needed(request, match)
        available = self._tables.cache.blocks.num_available + gain
        if not rows:
            return needed - available
        more = min(request.max_tokens - request.num_generated, _LOOKAHEAD_TOKENS * (1 + request.admissions))
        ahead = blocks_for(len(request.tokens) + more) - blocks_for(len(request.tokens))
        return needed + ahead + rows - available

    def _count(self, request: Request, now: float) -> None:
        if request.admissions == 0:
            request.cached_tokens = min(request.num_computed, request.num_prompt_tokens)
            request.queue_s = now - request.arrival_s
            self._counters.prompt_tokens += request.num_prompt_tokens
            self._counters.cached_tokens += request.cached_tokens
        request.admissions += 1
