"""Who broke it? Finds the request that makes shared work fail, without failing an innocent one.

Used twice: by the scheduler for a step that fails, and by the supervisor for an engine that dies. Both lose what was
in progress, start all requests again, and must not fail for ever because of one of them.

The method: a request that starts is in doubt until it has got on, and after a failure until it is past the point of
that failure. Those that were in doubt in a failure are suspects: from then on a suspect starts alone, with nobody else
in doubt beside it. Who was the only one in doubt is the prime suspect, and starts before the others. Only what failed
`MAX_FAILURES` times in a row with nothing else in it is the culprit, so no innocent request is ever failed, however
many others are to blame (`test_an_innocent_request_is_never_the_culprit`).

A request that always fails at some point is found after at most five failures: one in which it was beyond doubt, one in
which it was not, one on trial beside others beyond doubt, and two alone; after two when it is alone from the start
(`test_whoever_always_fails_is_found_in_five_failures`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

MAX_FAILURES = 2
"""Failures in a row, with nothing else in them, after which a request is failed itself."""


class Blame:
    """Positions are any count that grows as a request gets on: tokens computed, tokens delivered.

    in_doubt: those that have started and not got on since; only for them need `progressed` be called. For reading.
    """

    def __init__(self) -> None:
        self.in_doubt: set[str] = set()
        self._goal: dict[str, int] = {}  # the position that ends the doubt
        self._alone: dict[str, int] = {}  # failures in a row with nothing else in them
        self._suspects: dict[str, None] = {}  # in the order in which they became suspects
        self._prime: str | None = None
        self._on_trial: str | None = None

    @property
    def candidates(self) -> Collection[str] | None:
        """Those that may start now, one of them; None: anybody."""
        if self._on_trial is not None:
            return ()
        if self._prime is not None:
            return (self._prime,)
        return self._suspects.keys() or None

    def may_start(self, request_id: str) -> bool:
        """Whether a request may start now. One on trial may, should it have to start again."""
        candidates = self.candidates
        return candidates is None or request_id in candidates or request_id == self._on_trial

    def started(self, request_id: str) -> None:
        """Call when a request starts, or starts again."""
        self.in_doubt.add(request_id)
        if request_id in self._suspects:
            self._on_trial = request_id

    def stopped(self, request_id: str) -> None:
        """Call when a request is taken out without a fault of its own (preempted, paused)."""
        self.in_doubt.discard(request_id)
        if self._on_trial == request_id:
            self._on_trial = None

    def all_stopped(self) -> None:
        """Call when everybody has to start again by no fault of theirs."""
        self.in_doubt.clear()
        self._on_trial = None

    def progressed(self, request_id: str, position: int) -> None:
        """Call when work up to `position` has succeeded."""
        if position >= self._goal.get(request_id, 0):
            self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """Call when a request has ended."""
        self._goal.pop(request_id, None)
        self._alone.pop(request_id, None)
        self._suspects.pop(request_id, None)
        if self._prime == request_id:
            self._prime = None
        self.stopped(request_id)

    def failed(self, positions: Mapping[str, int]) -> str | None:
        """Shared work has failed, and everybody starts again. The culprit, if it is known now; it is forgotten.

        positions: of the requests that were in it, the position that each would have reached.
        """
        in_doubt = [r for r in positions if r in self.in_doubt]
        self.all_stopped()
        for request_id, position in positions.items():
            self._goal[request_id] = max(position, self._goal.get(request_id, 0))
        if len(positions) == 1:
            (alone,) = positions
            self._alone[alone] = self._alone.get(alone, 0) + 1
            if self._alone[alone] >= MAX_FAILURES:
                self.forget(alone)
                return alone
            in_doubt = [alone]
        self._suspects.update(dict.fromkeys(in_doubt))
        if len(in_doubt) == 1:
            self._prime = in_doubt[0]
        return None
