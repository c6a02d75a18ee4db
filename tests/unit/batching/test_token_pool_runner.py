"""The fake runner itself: it gives the reference text to legal plans, and no other plan gets past it."""

from __future__ import annotations

import pytest

from mlx_server.core.messages import FinishReason, SamplingParams
from mlx_server.core.step import Commit, Join, Segment, StepPlan
from tests.fakes.lockstep import lockstep, prompt_of, request
from tests.fakes.token_pool_runner import ContractError, DeviceError, FakeModel, TokenPoolRunner

PROMPT = prompt_of(70)
SAMPLING = SamplingParams(max_tokens=10, temperature=0.0)


def plan(
    step_id: int,
    *segments: Segment,
    commits: tuple[Commit, ...] = (),
    leaves: tuple[str, ...] = (),
    joins: tuple[Join, ...] = (),
) -> StepPlan:
    count = sum(1 if s.token_ids is None else len(s.token_ids) for s in segments)
    return StepPlan(step_id, commits, leaves, joins, segments, count)


def join(name: str = "a", blocks: tuple[int, ...] = (), tail: tuple[int, int] | None = None) -> Join:
    return Join(name, SAMPLING, blocks, tail, PROMPT, len(PROMPT))


def prefill(name: str = "a", start: int = 0) -> Segment:
    return Segment(name, start, PROMPT[start:], True, 0)


def prefilled() -> TokenPoolRunner:
    """Row `a` has computed PROMPT in step 1 and sampled."""
    runner = TokenPoolRunner(8)
    runner.finish(runner.launch(plan(1, prefill(), joins=(join(),))))
    return runner


def decode(start: int = 70) -> Segment:
    return Segment("a", start, None, True, start - 69)


COMMIT = Commit("a", (3, 5), 64)


def test_paging_does_not_change_the_text() -> None:
    runner = prefilled()
    steps = [runner.launch(plan(2, decode(), commits=(COMMIT,))), runner.launch(plan(3, decode(71)))]
    text = [runner.finish(s).sampled[0].token_id for s in steps]
    assert text == runner.model.reference_text(PROMPT, SAMPLING, 3)[0][1:]


@pytest.mark.parametrize("spoil", ["swap", "stale", "tail"])
def test_wrong_accounting_changes_the_text(spoil: str) -> None:
    runner = prefilled()
    runner.finish(runner.launch(plan(2, decode(), commits=(COMMIT,))))
    if spoil == "swap":
        runner.rows["a"].blocks.reverse()
    elif spoil == "stale":
        runner.pool[5] = list(prompt_of(32, seed=9))
    else:
        runner.rows["a"].tail[0] += 1
    token = runner.finish(runner.launch(plan(3, decode(71)))).sampled[0].token_id
    assert token != runner.model.reference_text(PROMPT, SAMPLING, 3)[0][2]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (plan(2, decode()), "tail is over its capacity"),
        (plan(2, decode(71)), "is at 70, the plan says 71"),
        (plan(2, decode(), decode()), "two segments"),
        (plan(2, Segment("b", 0, (5,), True, 0)), "b has no row"),
        (plan(2, leaves=("b",)), "b leaves and has no row"),
        (plan(2, joins=(join("a"),)), "joins and has a row"),
        (plan(2, decode(), commits=(Commit("a", (3, 5, 6), 96),)), "commit of 96 from 70"),
        (plan(2, decode(), commits=(Commit("a", (3,), 64),)), "blocks do not fit"),
        (plan(2, decode(), commits=(Commit("a", (3, 3), 64),)), "written twice"),
        (plan(2, decode(), commits=(Commit("a", (3, 8), 64),)), "block 8 is outside"),
        (plan(2, decode(), commits=(Commit("a", (3, 5, 6), 70),)), "commits part of a block and stays"),
        (plan(2, Segment("b", 32, PROMPT[32:], True, 0), joins=(join("b", (7,)),)), "block 7 is read and has 0"),
        (plan(2, joins=(join("b", (), (7, 5)),)), "tail source of 5"),
        (plan(1, decode()), "step 1 after 1"),
        (plan(2, Segment("a", 70, None, True, 0), commits=(COMMIT,)), "num_generated is not 1"),
        (StepPlan(2, (), (), (), (decode(),), 2), "num_tokens is 2"),
    ],
)
def test_an_illegal_plan_raises_and_is_remembered(bad: StepPlan, why: str) -> None:
    runner = prefilled()
    with pytest.raises(ContractError, match=why):
        runner.launch(bad)
    assert len(runner.violations) == 1


def test_a_token_on_the_device_is_that_of_the_step_before() -> None:
    runner = prefilled()
    runner.finish(runner.launch(plan(2)))
    with pytest.raises(ContractError, match="did not sample in step 2"):
        runner.launch(plan(3, decode()))


def test_a_block_that_a_row_reads_is_not_written() -> None:
    runner = prefilled()
    runner.finish(runner.launch(plan(2, decode(), commits=(COMMIT,))))
    runner.finish(runner.launch(plan(3, prefill("b"), joins=(join("b"),))))
    with pytest.raises(ContractError, match=r"block 5 is written while \['a'\] read it"):
        runner.launch(plan(4, commits=(Commit("b", (5, 6), 64),)))


def test_a_step_that_fails_at_its_end_has_written_nothing() -> None:
    runner = prefilled()
    runner.fail_finish.add(2)
    step = runner.launch(plan(2, decode(), commits=(COMMIT,)))
    assert runner.pool[3]
    with pytest.raises(DeviceError):
        runner.finish(step)
    assert runner.pool == [[]] * 8
    with pytest.raises(ContractError, match="without a reset"):
        runner.launch(plan(3))


def test_reference_text_stops_where_it_should() -> None:
    model = FakeModel(eos_one_in=6)
    ignoring = SamplingParams(max_tokens=50, temperature=0.0, ignore_eos=True)
    endless, reason = model.reference_text(PROMPT, ignoring, 50)
    assert (len(endless), reason) == (50, FinishReason.LENGTH)
    text, reason = model.reference_text(PROMPT, SAMPLING, 50)
    assert reason is FinishReason.STOP
    assert text == endless[: endless.index(model.eos_token_id)]
    seeded = [SamplingParams(max_tokens=9, seed=s) for s in (1, 1, 2)]
    first, again, other = (model.reference_text(PROMPT, s, 9)[0] for s in seeded)
    assert first == again != other


def test_a_cache_that_lies_is_caught_by_the_text() -> None:
    """The whole chain: a match that is one block off, deep in the engine, comes out as another text."""
    engine = lockstep()
    engine.add(request("a", PROMPT))
    engine.finish()
    cache = engine.scheduler.cache
    full = sorted(cache._by_hash.items(), key=lambda item: item[1])
    cache._by_hash[full[0][0]], cache._by_hash[full[1][0]] = full[1][1], full[0][1]
    engine.add(request("b", PROMPT))
    engine.finish()
    with pytest.raises(AssertionError):
        engine.check_text("b")
