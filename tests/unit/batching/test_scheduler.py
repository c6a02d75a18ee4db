"""Who computes what in a step: order, limits, twins, ends. Preemption and failed steps have files of their own."""

from __future__ import annotations

import math

import msgspec
import pytest

from mlx_server.core.errors import ContextLengthError, QueueFullError, RequestError
from mlx_server.core.messages import FinishReason, Priority
from mlx_server.core.step import Segment, StepPlan, StepResult
from tests.fakes.lockstep import EOS, lockstep, prompt_of, request, scheduler
from tests.fakes.token_pool_runner import FakeModel

LONG = prompt_of(600)


def segments(plan: StepPlan | None) -> dict[str, Segment]:
    assert plan is not None
    return {s.request_id: s for s in plan.segments}


def prefill_tokens(plans: list[StepPlan], request_id: str) -> int:
    """Tokens of the prompt that were computed, not found."""
    chunks = [s.token_ids for p in plans for s in p.segments if s.request_id == request_id and s.num_generated == 0]
    return sum(len(c) for c in chunks if c is not None)


# ---- order and limits ------------------------------------------------------------------------------


def test_decodes_come_first_and_a_prefill_gets_what_is_left() -> None:
    engine = lockstep(max_num_batched_tokens=72)
    engine.add(request("a", prompt_of(10), max_tokens=40))
    engine.step_alone()
    engine.add(request("b", LONG, max_tokens=2))
    for _ in range(5):
        plan = engine.step_alone()
        assert plan is not None
        assert [s.request_id for s in plan.segments] == ["a", "b"]
        assert plan.segments[0].start == 10 + len(engine.texts["a"]) - 2
    engine.finish()
    engine.check_over()


def test_the_token_budget_is_never_exceeded_and_is_used() -> None:
    engine = lockstep(max_num_batched_tokens=100, step_target_s=10.0)
    for i in range(12):
        engine.add(request(f"r{i}", prompt_of(200, seed=i), max_tokens=20))
    engine.finish()
    engine.check_over()
    sizes = [p.num_tokens for p in engine.plans]
    assert max(sizes) <= 100
    assert max(sizes) > 90


def test_no_more_rows_than_max_num_seqs() -> None:
    engine = lockstep(max_num_seqs=3)
    for i in range(10):
        engine.add(request(f"r{i}", prompt_of(20, seed=i), max_tokens=5))
    most = 0
    for _ in range(100):
        engine.step()
        most = max(most, engine.scheduler.stats().running)
    engine.finish()
    engine.check_over()
    assert most == 3


def test_chunks_end_on_block_boundaries() -> None:
    engine = lockstep(max_num_batched_tokens=90, max_num_seqs=5)
    engine.add(request("first", LONG[:77], max_tokens=30))
    engine.finish()
    for i in range(4):
        engine.add(request(f"r{i}", (*LONG[:77], *prompt_of(150 + i, seed=i)), max_tokens=9))
    engine.finish()
    engine.check_over()
    cut = [s for p in engine.plans for s in p.segments if s.token_ids is not None and not s.sample]
    assert cut
    assert all((s.start + len(s.token_ids or ())) % 32 == 0 for s in cut)
    assert any(s.start % 32 for s in cut), "a chunk that starts behind a copied tail is part of the case"


def test_a_short_prompt_behind_a_long_one_starts_in_the_same_step() -> None:
    engine = lockstep(max_num_batched_tokens=256)
    engine.add(request("long", LONG))
    engine.add(request("short", prompt_of(30, seed=1)))
    plan = segments(engine.step())
    assert plan["short"].sample
    assert not plan["long"].sample


def test_more_important_prompts_are_prefilled_first() -> None:
    engine = lockstep()
    engine.add(request("low", prompt_of(20, 1), priority=Priority.LOW))
    engine.add(request("normal", prompt_of(20, 2), priority=Priority.NORMAL))
    engine.add(request("high", prompt_of(20, 3), priority=Priority.HIGH))
    assert list(segments(engine.step())) == ["high", "normal", "low"]


def test_a_low_request_that_waited_goes_before_a_normal_newcomer() -> None:
    engine = lockstep(max_num_seqs=1)
    engine.add(request("busy", prompt_of(20), max_tokens=30, priority=Priority.HIGH))
    engine.step()
    engine.add(request("low", prompt_of(20, 1), priority=Priority.LOW))
    engine.now = 10.5
    engine.add(request("normal", prompt_of(20, 2), priority=Priority.NORMAL))
    engine.finish()
    engine.check_over()
    assert [j.request_id for p in engine.plans for j in p.joins] == ["busy", "low", "normal"]


# ---- the prefix cache at work ----------------------------------------------------------------------


def test_a_repeat_recomputes_one_token() -> None:
    engine = lockstep()
    for name in ("a", "b"):
        engine.add(request(name, LONG[:500], max_tokens=3))
        engine.finish()
    engine.check_over()
    assert (engine.ends["a"].cached_tokens, engine.ends["b"].cached_tokens) == (0, 499)
    assert prefill_tokens(engine.plans, "b") == 1


def test_the_next_turn_of_a_chat_finds_question_and_answer() -> None:
    engine = lockstep()
    engine.add(request("turn1", LONG[:100], max_tokens=50))
    engine.finish()
    chat = (*LONG[:100], *engine.texts["turn1"], *prompt_of(20, seed=9))
    engine.add(request("turn2", chat))
    engine.finish()
    engine.check_over()
    # The last token of an answer is sampled, never computed: its K/V does not exist.
    assert engine.ends["turn2"].cached_tokens == 149


def test_salts_do_not_share() -> None:
    engine = lockstep()
    for name in ("mine", "yours"):
        engine.add(request(name, LONG[:100], salt=name))
        engine.finish()
    engine.check_over()
    assert engine.ends["yours"].cached_tokens == 0


def test_twins_wait_and_hit() -> None:
    engine = lockstep(max_num_batched_tokens=80)
    names = ["a", "b", "c"]
    for name in names:
        engine.add(request(name, (*LONG[:320], ord(name))))
    engine.finish()
    engine.check_over()
    computed = [prefill_tokens(engine.plans, name) for name in names]
    assert computed == [321, 1, 1]


def test_a_twin_starts_as_soon_as_the_prompt_is_computed() -> None:
    """The first one's tail would not have to be committed for long; it is, because somebody waits for it."""
    engine = lockstep()
    engine.add(request("a", LONG[:50], max_tokens=60))
    engine.add(request("twin", LONG[:50], max_tokens=60))
    joined = next(i for i in range(60) if (plan := engine.step()) and "twin" in {j.request_id for j in plan.joins})
    assert joined <= 2
    engine.finish()
    engine.check_over()


def test_who_is_no_twin_passes_twins_that_wait() -> None:
    engine = lockstep(max_num_batched_tokens=160)
    engine.add(request("a", (*LONG[:320], 7)))
    engine.add(request("twin", (*LONG[:320], 8)))
    engine.add(request("other", prompt_of(20, seed=5)))
    plan = segments(engine.step())
    assert set(plan) == {"a", "other"}
    engine.finish()
    engine.check_over()


def test_a_more_important_twin_without_a_row_does_not_stop_the_one_it_waits_for() -> None:
    """It came first in the queue, found no row, and nobody behind it got a chunk: both waited for ever."""
    engine = lockstep(max_num_seqs=1, max_num_batched_tokens=64)
    engine.add(request("first", LONG[:105], priority=Priority.NORMAL))
    engine.step()
    engine.add(request("twin", LONG[:98], priority=Priority.HIGH))
    engine.finish()
    engine.check_over()


def test_a_twin_goes_on_alone_when_the_first_is_cancelled() -> None:
    engine = lockstep(max_num_batched_tokens=80)
    engine.add(request("a", LONG))
    engine.add(request("b", LONG))
    for _ in range(3):
        engine.step()
    engine.cancel("a")
    engine.finish()
    engine.check_over()
    assert engine.ends["b"].finish_reason is FinishReason.LENGTH
    assert prefill_tokens(engine.plans, "b") < 600, "what the first had computed was not lost"


def test_of_a_finished_request_the_end_is_evicted_first() -> None:
    engine = lockstep(4, max_model_len=128)
    engine.add(request("a", LONG[:127], max_tokens=1))
    engine.finish()
    assert engine.scheduler.cache.blocks.allocate(2) is not None
    engine.scheduler.add(request("b", LONG[:63], max_tokens=1), 0.0)
    plan = engine.scheduler.schedule(0.0)
    assert plan is not None
    (join,) = plan.joins
    assert len(join.block_ids) * 32 + (join.tail_source or (0, 0))[1] == 62


def test_a_block_that_a_tail_was_copied_from_counts_as_used() -> None:
    engine = lockstep()
    for name, seed in (("old", 1), ("newer", 2)):
        engine.add(request(name, prompt_of(20, seed), max_tokens=1))
        engine.finish()
    blocks = engine.scheduler.cache.blocks
    first = blocks.oldest_cached()
    engine.add(request("again", prompt_of(20, 1), max_tokens=1))
    engine.schedule()
    assert blocks.oldest_cached() != first


def test_without_the_prefix_cache_nothing_is_shared_or_kept() -> None:
    engine = lockstep(16, prefix_cache=False, max_num_seqs=4)
    for i in range(8):
        engine.add(request(f"r{i}", (*LONG[:60], i + 3), max_tokens=200))
    engine.finish()
    engine.check_over()
    assert all(end.cached_tokens == 0 for end in engine.ends.values())
    assert engine.scheduler.stats().blocks_free == 16
    assert not any({c.request_id for c in p.commits} & set(p.leaves) for p in engine.plans), "written for nobody"
    assert engine.scheduler.stats().preemptions > 0, "preempted ones start from nothing, with the same text"


# ---- ends ------------------------------------------------------------------------------------------


def test_max_tokens_1_is_the_prefill_alone() -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(40), max_tokens=1))
    engine.finish()
    engine.check_over()
    assert len(engine.texts["a"]) == 1
    assert [len(p.segments) for p in engine.plans] == [1, 0], "the second plan only takes the row away"


def test_a_prompt_that_leaves_room_for_one_token() -> None:
    engine = lockstep(4, max_model_len=128)
    engine.add(request("a", prompt_of(127), max_tokens=50))
    engine.finish()
    engine.check_over()
    assert len(engine.texts["a"]) == 1
    assert engine.ends["a"].finish_reason is FinishReason.LENGTH
    with pytest.raises(ContextLengthError):
        engine.add(request("b", prompt_of(128)))


def test_a_request_may_fill_the_pool() -> None:
    engine = lockstep(4, max_model_len=128)
    engine.add(request("a", prompt_of(60), max_tokens=500))
    engine.finish()
    engine.check_over()
    assert len(engine.texts["a"]) == 68
    assert engine.scheduler.stats().preemptions == 0


def test_no_decode_is_planned_behind_the_last_token() -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(10), max_tokens=6))
    engine.finish()
    assert sum(len(p.segments) for p in engine.plans) == 6


def stop_case(**sampling: object) -> tuple[list[int], FinishReason | None, int]:
    """Text, reason and generated tokens as counted, with an end token about every fifth."""
    engine = lockstep(model=FakeModel(eos_one_in=5))
    engine.add(request("a", prompt_of(10), max_tokens=60, **sampling))
    engine.finish()
    engine.check_over()
    return engine.texts["a"], engine.ends["a"].finish_reason, engine.scheduler.stats().generated_tokens


def test_an_end_token_ends_the_text_and_is_not_in_it() -> None:
    text, reason, counted = stop_case()
    assert reason is FinishReason.STOP
    assert EOS not in text
    assert 0 < len(text) < 60
    assert counted == len(text)


def test_ignore_eos_goes_on() -> None:
    text, reason, counted = stop_case(ignore_eos=True)
    assert (len(text), counted, reason) == (60, 60, FinishReason.LENGTH)
    assert EOS in text


def test_stop_token_ids_end_the_text() -> None:
    text, _, _ = stop_case(ignore_eos=True)
    first = [t for t in text if t != EOS][3]
    shorter, reason, counted = stop_case(ignore_eos=True, stop_token_ids=(first,))
    assert shorter == text[: text.index(first)]
    assert (reason, counted) == (FinishReason.STOP, len(shorter))


def test_an_end_token_asked_for_as_stop_token_stops_though_eos_is_ignored() -> None:
    text, reason, _ = stop_case(ignore_eos=True, stop_token_ids=(EOS,))
    assert reason is FinishReason.STOP
    assert EOS not in text


def test_min_tokens_reach_the_runner_right() -> None:
    text, _, _ = stop_case(min_tokens=30)
    assert len(text) >= 30


def test_overrun_tokens_are_neither_delivered_nor_counted() -> None:
    engine = lockstep(model=FakeModel(eos_one_in=4))
    for i in range(6):
        engine.add(request(f"r{i}", prompt_of(20, seed=i), max_tokens=200, top_logprobs=0))
    engine.finish()
    engine.check_over()
    assert {e.finish_reason for e in engine.ends.values()} == {FinishReason.STOP}
    sampled = sum(s.sample for p in engine.plans for s in p.segments)
    delivered = sum(map(len, engine.texts.values()))
    assert sampled > delivered + 6, "without overrun this proves nothing: 6 end tokens, and tokens behind them"
    assert engine.scheduler.stats().generated_tokens == delivered


# ---- cancel ----------------------------------------------------------------------------------------


def test_cancel_while_waiting() -> None:
    engine = lockstep(max_num_seqs=1)
    engine.add(request("a", prompt_of(20), max_tokens=5))
    engine.step()
    engine.add(request("b", prompt_of(20, 1)))
    assert engine.cancel("b")
    engine.finish()
    engine.check_over()
    assert "b" not in {j.request_id for p in engine.plans for j in p.joins}


def test_cancel_while_prefilling_keeps_what_is_computed() -> None:
    engine = lockstep(max_num_batched_tokens=72)
    engine.add(request("a", LONG))
    for _ in range(4):
        engine.step_alone()
    assert engine.cancel("a")
    plan = engine.step()
    assert plan is not None
    assert plan.leaves == ("a",)
    assert engine.scheduler.stats().blocks_used == 0
    engine.add(request("b", LONG))
    engine.finish()
    engine.check_over()
    assert engine.ends["b"].cached_tokens == prefill_tokens(engine.plans, "a") > 0


@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_cancel_while_decoding(in_flight: int) -> None:
    """With tokens on the device, too: they come later and go nowhere."""
    engine = lockstep()
    engine.add(request("a", prompt_of(20), max_tokens=50))
    engine.add(request("b", prompt_of(20, 1), max_tokens=50))
    for _ in range(8):
        engine.step_alone()
    for _ in range(in_flight):
        engine.schedule()
    before = len(engine.texts["a"])
    assert engine.cancel("a")
    while engine.execute():
        pass
    engine.drain()
    while engine.update():
        pass
    assert len(engine.texts["a"]) == before
    assert segments(engine.schedule()).keys() == {"b"}
    engine.finish()
    engine.check_over()
    assert engine.scheduler.stats().generated_tokens == before + 50


def test_cancel_after_the_end_is_false() -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(20), max_tokens=1))
    engine.step_alone()
    assert engine.ends["a"].finish_reason is FinishReason.LENGTH
    assert not engine.cancel("a")
    engine.finish()
    assert not engine.cancel("a")
    assert not engine.cancel("never seen")
    engine.check_over()


# ---- the way in ------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_back() -> None:
    engine = lockstep(max_num_seqs=1, max_queue=2)
    engine.add(request("running", prompt_of(20), max_tokens=30))
    engine.step()
    engine.add(request("w1", prompt_of(20, 1)))
    engine.add(request("w2", prompt_of(20, 2)))
    with pytest.raises(QueueFullError) as error:
        engine.scheduler.add(request("w3", prompt_of(20, 3)), engine.now)
    assert error.value.limit == 2
    assert error.value.retry_after_s >= 1
    engine.finish()
    engine.add(request("w3", prompt_of(20, 3)))
    engine.finish()
    engine.check_over()


def test_retry_after_follows_the_pace_at_which_requests_end() -> None:
    engine = lockstep(max_num_seqs=1, max_queue=1)
    for i in range(30):
        engine.add(request(f"r{i}", prompt_of(20, i), max_tokens=1))
        engine.now += 20.0
        engine.finish()
    engine.add(request("last", prompt_of(20), max_tokens=1))
    with pytest.raises(QueueFullError) as error:
        engine.add(request("more", prompt_of(20)))
    assert math.isclose(error.value.retry_after_s, 20, abs_tol=1)


def test_retry_after_does_not_count_idle_time() -> None:
    engine = lockstep(max_num_seqs=1, max_queue=1)
    for i in range(30):
        engine.now += 3600.0
        engine.add(request(f"r{i}", prompt_of(20, i), max_tokens=1))
        engine.now += 2.0
        engine.finish()
    engine.add(request("last", prompt_of(20), max_tokens=1))
    with pytest.raises(QueueFullError) as error:
        engine.add(request("more", prompt_of(20)))
    assert error.value.retry_after_s == 2


@pytest.mark.parametrize("generated", [(7,) * 5, (7, 99), (7, EOS)])
def test_a_text_that_has_ended_is_not_taken_up_again(generated: tuple[int, ...]) -> None:
    engine = lockstep()
    message = request("a", prompt_of(20), max_tokens=5, stop_token_ids=(99,))
    with pytest.raises(RequestError, match="already") as error:
        engine.scheduler.add(msgspec.structs.replace(message, generated_token_ids=generated), 0.0)
    assert error.value.field == "generated_token_ids"
    engine.scheduler.add(msgspec.structs.replace(message, generated_token_ids=(7,) * 4), 0.0)


def test_an_empty_prompt_and_an_id_in_use_are_refused() -> None:
    engine = lockstep()
    with pytest.raises(RequestError, match="empty"):
        engine.scheduler.add(request("a", []), 0.0)
    engine.add(request("a", [5]))
    with pytest.raises(RequestError, match="'a' is in use"):
        engine.scheduler.add(request("a", [5]), 0.0)
    engine.finish()
    engine.scheduler.add(request("a", [5]), 0.0)


def test_queue_time_and_cached_tokens_are_told_in_every_delta() -> None:
    engine = lockstep(max_num_seqs=1)
    engine.add(request("a", prompt_of(64), max_tokens=4))
    engine.step_alone()
    engine.add(request("b", prompt_of(64), max_tokens=4))
    engine.now = 2.5
    engine.finish()
    assert engine.ends["b"].queue_s == 2.5
    assert engine.ends["b"].cached_tokens == 63
    stats = engine.scheduler.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (128, 63)


def test_a_budget_that_cannot_hold_every_row_is_refused() -> None:
    with pytest.raises(ValueError, match="token budget"):
        scheduler(max_num_seqs=8, max_num_batched_tokens=39)


def test_a_context_that_the_pool_cannot_hold_is_refused() -> None:
    """Such a request would be admitted, grow, be preempted alone, and start again for ever."""
    with pytest.raises(ValueError, match="max_model_len"):
        scheduler(num_blocks=4, max_model_len=129)


def test_a_result_of_another_plan_is_refused() -> None:
    engine = lockstep()
    engine.add(request("a", prompt_of(20)))
    plan = engine.schedule()
    assert plan is not None
    with pytest.raises(ValueError, match="result of step 7"):
        engine.scheduler.update(plan, StepResult(7))


def test_nothing_to_do_is_no_plan() -> None:
    engine = lockstep()
    assert engine.schedule() is None
    engine.add(request("a", prompt_of(20), max_tokens=3))
    engine.finish()
    assert engine.schedule() is None
    assert not engine.scheduler.has_work
