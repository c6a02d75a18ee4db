"""Queues are bounded for each priority and for each tenant, and only newcomers are refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mlx_server.core.errors import QueueFullError, RequestError
from mlx_server.core.messages import Priority
from tests.fakes.lockstep import lockstep, prompt_of, request


def test_a_full_priority_does_not_refuse_another() -> None:
    engine = lockstep(max_num_seqs=1, max_queue=2)
    for i in range(2):
        engine.add(request(f"low{i}", prompt_of(20, i), priority=Priority.LOW))
    with pytest.raises(QueueFullError, match="the queue of priority 'low' is full") as refused:
        engine.add(request("low2", prompt_of(20, 2), priority=Priority.LOW))
    assert refused.value.retry_after_s >= 1
    engine.add(request("normal", prompt_of(20, 3)))
    engine.finish()
    engine.check_over()


def test_a_full_tenant_does_not_refuse_another() -> None:
    engine = lockstep(max_num_seqs=1, max_queue_per_tenant=2)
    for i in range(2):
        engine.add(replace(request(f"a{i}", prompt_of(20, i)), tenant="a"))
    with pytest.raises(QueueFullError, match="the queue of this API key is full"):
        engine.add(replace(request("a2", prompt_of(20, 2)), tenant="a"))
    engine.add(replace(request("b0", prompt_of(20, 3)), tenant="b"))
    engine.step_alone()  # one of them has a row now
    engine.add(replace(request("a2", prompt_of(20, 2)), tenant="a"))
    engine.finish()
    engine.check_over()


def test_cancelled_requests_make_room() -> None:
    engine = lockstep(max_num_seqs=1, max_queue=1)
    for i in range(5):
        engine.add(request(f"r{i}", prompt_of(20, i)))
        engine.cancel(f"r{i}")
    engine.add(request("last", prompt_of(20)))
    engine.finish()
    engine.check_over()


def test_an_interrupted_request_is_let_in_and_keeps_its_place() -> None:
    engine = lockstep(max_num_seqs=1, max_queue=1)
    engine.now = 100.0
    engine.add(request("newcomer", prompt_of(20, 1)))
    engine.add(replace(request("interrupted", prompt_of(20, 2)), arrival_s=50.0))
    assert [join.request_id for join in engine.schedule().joins] == ["interrupted"]  # type: ignore[union-attr]
    engine.finish()
    engine.check_over()


def test_a_place_from_the_future_is_not_believed() -> None:
    engine = lockstep(max_num_seqs=1)
    engine.now = 100.0
    engine.add(replace(request("a", prompt_of(20, 1)), arrival_s=1e9))
    engine.now = 101.0
    engine.add(request("b", prompt_of(20, 2)))
    assert [join.request_id for join in engine.schedule().joins] == ["a"]  # type: ignore[union-attr]


def test_nothing_is_left_to_generate() -> None:
    engine = lockstep()
    with pytest.raises(RequestError, match="generated already"):
        engine.add(replace(request("a", prompt_of(20), 3), generated_token_ids=(5, 6, 7)))


def test_max_tokens_is_lowered_to_what_the_context_leaves() -> None:
    engine = lockstep(max_model_len=64)
    engine.add(request("a", prompt_of(30), max_tokens=50))
    engine.finish()
    assert len(engine.texts["a"]) == 34
    with pytest.raises(RequestError, match="generated already"):
        engine.add(replace(request("b", prompt_of(30), 50), generated_token_ids=(5,) * 34))
