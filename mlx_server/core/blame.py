"""Who broke it? Finds the request that makes shared work fail, without failing an innocent one.

Used twice: by the scheduler for a step that fails, and by the supervisor for an engine that dies. Both lose everything
that was in progress, start all requests again, and must not fail for ever because of one of them.

The method: whoever has got further than where it stood at its last failure is beyond doubt. A failure is blamed on
those in it that are not, or on all in it if all are. Those blamed while in doubt are suspects: from then on a suspect
starts alone, with nobody else in doubt beside it, until it is past the point of failure. A request that is the only
one to blame for its second failure in a row is the culprit.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_FAILURES = 2
"""Failures in a row after which the only one to blame is failed itself."""


class Blame:
    """Positions are any count that grows as a request gets on: tokens computed, tokens delivered."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}  # in a row, without getting past the point of failure
        self._goal: dict[str, int] = {}  # the position that ends the doubt
        self._cleared: set[str] = set()  # got on since they last started
        self._suspects: dict[str, None] = {}  # in the order in which they became suspects
        self._on_trial: str | None = None

    @property
    def suspects(self) -> tuple[str, ...]:
        """Those that may only start alone, the one on trial included."""
        return tuple(self._suspects)

    def may_start(self, request_id: str) -> bool:
        """Whether a request may start now: anybody while there is no suspect, else one suspect at a time."""
        if self._on_trial is not None:
            return False
        return not self._suspects or request_id in self._suspects

    def started(self, request_id: str) -> None:
        """Call when a request starts, or starts again."""
        self._cleared.discard(request_id)
        if request_id in self._suspects:
            self._on_trial = request_id

    def stopped(self, request_id: str) -> None:
        """Call when a request is taken out without a fault of its own (preempted, paused)."""
        if self._on_trial == request_id:
            self._on_trial = None

    def progressed(self, request_id: str, position: int) -> None:
        """Call when work up to `position` has succeeded."""
        if position < self._goal.get(request_id, 0):
            return
        self._cleared.add(request_id)
        self._failures.pop(request_id, None)
        self._goal.pop(request_id, None)
        self._suspects.pop(request_id, None)
        self.stopped(request_id)

    def forget(self, request_id: str) -> None:
        """Call when a request has ended."""
        self._failures.pop(request_id, None)
        self._goal.pop(request_id, None)
        self._suspects.pop(request_id, None)
        self._cleared.discard(request_id)
        self.stopped(request_id)

    def failed(self, positions: Mapping[str, int]) -> str | None:
        """Shared work has failed, and everybody has to start again. The culprit, if it is known now.

        positions: of the requests that were in it, the position that each would have reached.
        """
        in_doubt = [r for r in positions if r not in self._cleared]
        blamed = in_doubt or list(positions)
        self._cleared.clear()
        self._on_trial = None
        for request_id in blamed:
            self._failures[request_id] = self._failures.get(request_id, 0) + 1
            self._goal[request_id] = max(positions[request_id], self._goal.get(request_id, 0))
        if len(blamed) == 1 and self._failures[blamed[0]] >= MAX_FAILURES:
            self.forget(blamed[0])
            return blamed[0]
        for request_id in in_doubt:
            self._suspects[request_id] = None
        return None
