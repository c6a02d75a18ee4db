"""Every request that is alive: waiting, running, or ending. Moves between them happen here and nowhere else."""

from __future__ import annotations

from bisect import insort

from mlx_server.core.blame import Blame
from mlx_server.core.messages import Priority
from mlx_server.services.batching.block_tables import BlockTables
from mlx_server.services.batching.config import Counters
from mlx_server.services.batching.plan_draft import PlanDraft
from mlx_server.services.batching.queue_limits import QueueLimits
from mlx_server.services.batching.request import Request, RequestState
from mlx_server.services.batching.request_queue import RequestQueue


class RequestSets:
    """waiting: by key. running: those with a row, in key order. ending: finished, row and blocks go at the next
    step boundary. A finished request is remembered until no sample of it is in flight any more.

    blame: of failed steps; hears of everybody who starts, stops and ends.
    """

    def __init__(self, tables: BlockTables, counters: Counters, limits: QueueLimits) -> None:
        self.blame = Blame()
        self.waiting = RequestQueue()
        self.running: list[Request] = []
        self.ending: list[Request] = []
        self._all: dict[str, Request] = {}
        self._tables = tables
        self._counters = counters
        self._limits = limits

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._all

    def __getitem__(self, request_id: str) -> Request:
        return self._all[request_id]

    def get(self, request_id: str) -> Request | None:
        """None: not alive, nor remembered."""
        return self._all.get(request_id)

    def by_priority(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """How many run and how many wait, indexed by `Priority`. O(requests)."""
        running, waiting = [0] * len(Priority), [0] * len(Priority)
        for request in self._all.values():
            if request.is_running:
                running[request.priority] += 1
            elif request.state is RequestState.WAITING:
                waiting[request.priority] += 1
        return (running[0], running[1], running[2]), (waiting[0], waiting[1], waiting[2])

    def head(self) -> Request | None:
        """The most important waiting request; after a failed step, of those that may start."""
        candidates = self.blame.candidates
        if candidates is not None:
            waiting = (self._all[r] for r in candidates if r in self.waiting)
            return min(waiting, key=lambda r: r.key, default=None)
        head = self.waiting.peek()
        return self._all[head] if head is not None else None

    def add(self, request: Request) -> None:
        """A newcomer waits."""
        self._limits.enter(request.priority, request.tenant)
        self._all[request.request_id] = request
        self.waiting.push(request.request_id, request.key)

    def start(self, request: Request) -> None:
        """From waiting to running, with a row and blocks."""
        self._leave_queue(request)
        self.waiting.remove(request.request_id)
        request.move_to(RequestState.PREFILL)
        self.blame.started(request.request_id)
        insort(self.running, request, key=lambda r: r.key)

    def preempt(self, request: Request, draft: PlanDraft) -> None:
        """From running back to waiting, with its key. What it computed stays findable."""
        self.running.remove(request)
        self._leave(request, draft)
        request.move_to(RequestState.WAITING)
        self.blame.stopped(request.request_id)
        self.waiting.push(request.request_id, request.key)
        self._counters.preemptions += 1

    def finish(self, request: Request) -> None:
        """The request has ended, wherever it was."""
        self._leave_queue(request)
        if request.is_running:
            self.running.remove(request)
            self.ending.append(request)
        else:
            self.waiting.remove(request.request_id)
        request.move_to(RequestState.FINISHED)
        self.blame.forget(request.request_id)
        self._counters.requests_finished += 1
        self.forget_if_over(request)

    def plan_endings(self, draft: PlanDraft) -> None:
        """A step boundary: finished requests give their rows and blocks back."""
        ended, self.ending = self.ending, []
        for request in ended:
            self._leave(request, draft)
            self.forget_if_over(request)

    def reset(self) -> None:
        """The runner has dropped every row: all that run start again from the cache."""
        self.blame.all_stopped()
        running, self.running = self.running, []
        for request in running:
            self._tables.release(request)
            request.move_to(RequestState.WAITING)
            self.waiting.push(request.request_id, request.key)
        ended, self.ending = self.ending, []
        for request in ended:
            self._tables.release(request)
            self.forget_if_over(request)

    def forget_if_over(self, request: Request) -> None:
        """Call when a finished request's last sample in flight has come back."""
        if request.state is RequestState.FINISHED and not request.in_flight and request not in self.ending:
            del self._all[request.request_id]

    def _leave_queue(self, request: Request) -> None:
        if request.admissions == 0:
            self._limits.leave(request.priority, request.tenant)

    def _leave(self, request: Request, draft: PlanDraft) -> None:
        draft.add_commit(self._tables.commit(request, final=True))
        draft.leaves.append(request.request_id)
        self._tables.release(request)
