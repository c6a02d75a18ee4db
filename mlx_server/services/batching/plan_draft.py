"""A `StepPlan` being made."""

from __future__ import annotations

from mlx_server.core.step import Commit, Join, Resize, Segment, StepPlan
from mlx_server.services.batching.request import Request, RequestState


class PlanDraft:
    """Lists in order of execution. Adding a segment moves the request's own counts on."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.leaves: list[str] = []
        self.joins: list[Join] = []
        self.segments: list[Segment] = []
        self.num_tokens = 0
        self.resize: Resize | None = None

    def is_empty(self) -> bool:
        """Whether there is nothing to execute."""
        return not (self.segments or self.joins or self.leaves or self.commits or self.resize)

    def add_commit(self, commit: Commit | None) -> None:
        """None: there was nothing to write."""
        if commit is not None:
            self.commits.append(commit)

    def add_decode(self, request: Request) -> None:
        """One token; where it is not known on the host yet, it is taken on the device."""
        position = request.num_computed
        known = position < len(request.tokens)
        tokens = (request.tokens[position],) if known else None
        self.segments.append(Segment(request.request_id, position, tokens, True, request.num_planned))
        request.num_computed = position + 1
        request.in_flight += 1
        self.num_tokens += 1

    def add_chunk(self, request: Request, num_tokens: int) -> None:
        """The next tokens of a prefill; the last chunk samples and makes the request a decode."""
        start, end = request.num_computed, request.num_computed + num_tokens
        last = end == len(request.tokens)
        tokens = tuple(request.tokens[start:end])
        self.segments.append(Segment(request.request_id, start, tokens, last, request.num_generated))
        request.num_computed = end
        self.num_tokens += num_tokens
        if last:
            request.in_flight += 1
            request.move_to(RequestState.DECODE)

    def build(self, step_id: int) -> StepPlan:
        """The frozen plan."""
        return StepPlan(
            step_id=step_id,
            commits=tuple(self.commits),
            leaves=tuple(self.leaves),
            joins=tuple(self.joins),
            segments=tuple(self.segments),
            num_tokens=self.num_tokens,
            resize=self.resize,
        )
