"""The transition table."""

import itertools

import pytest

from mlx_server.services.batching.request import IllegalTransitionError, Request, RequestState, blocks_for
from mlx_server.services.batching.request_queue import QueueKey
from tests.fakes.lockstep import request

W, P, D, F = RequestState.WAITING, RequestState.PREFILL, RequestState.DECODE, RequestState.FINISHED
LEGAL = {(W, P), (W, F), (P, D), (P, W), (P, F), (D, W), (D, F)}


def made(state: RequestState) -> Request:
    r = Request.create(request("r", [1, 2, 3]), QueueKey(0.0, 1), 0.0, b"", max_tokens=8)
    r.state = state
    return r


@pytest.mark.parametrize(("before", "after"), list(itertools.product(RequestState, RequestState)))
def test_only_the_edges_of_the_table_are_legal(before: RequestState, after: RequestState) -> None:
    r = made(before)
    if (before, after) in LEGAL:
        r.move_to(after)
        assert r.state is after
    else:
        with pytest.raises(IllegalTransitionError, match=f"r: {before.value} -> {after.value}"):
            r.move_to(after)
        assert r.state is before


def test_blocks_for() -> None:
    assert [blocks_for(n) for n in (0, 1, 31, 32, 33, 64, 65)] == [0, 1, 1, 1, 2, 2, 3]
