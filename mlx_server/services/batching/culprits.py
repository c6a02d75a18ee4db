"""Which requests a failed step is blamed on, and which a good one clears. The judgement is that of `core/blame.py`."""

from __future__ import annotations

from mlx_server.core.step import Segment, StepPlan, StepResult
from mlx_server.services.batching.request import RequestState
from mlx_server.services.batching.request_sets import RequestSets


def clear_of_doubt(sets: RequestSets, plan: StepPlan) -> None:
    """The plan has been executed: its requests have got on."""
    blame = sets.blame
    if not blame.in_doubt:
        return
    for segment in plan.segments:
        if segment.request_id in blame.in_doubt:
            blame.progressed(segment.request_id, _end(segment))


def culprits(sets: RequestSets, plan: StepPlan, result: StepResult) -> tuple[str, ...]:
    """Of a plan that failed: known by the runner, or found by trial. Who has ended meanwhile is nobody to blame."""
    if known := tuple(request_id for request_id in result.culprits if request_id in sets):
        return known
    touched = [sets.get(request_id) for request_id in _rows_of(plan)]
    reached = {r.request_id: r.num_computed for r in touched if r and r.state is not RequestState.FINISHED}
    reached |= {s.request_id: _end(s) for s in plan.segments if s.request_id in reached}
    culprit = sets.blame.failed(reached)
    return () if culprit is None else (culprit,)


def _rows_of(plan: StepPlan) -> set[str]:
    """Every request that could make the step fail."""
    rows = {segment.request_id for segment in plan.segments}
    rows.update(join.request_id for join in plan.joins)
    rows.update(commit.request_id for commit in plan.commits)
    return rows


def _end(segment: Segment) -> int:
    """The position behind its last token."""
    return segment.start + (1 if segment.token_ids is None else len(segment.token_ids))
