"""Engine, loop and thread together: every request ends once, with a true reason, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import threading
from types import SimpleNamespace

import pytest

from mlx_server.core.errors import (
    EngineDeadError,
    EngineNotReadyError,
    ModelLoadError,
    QueueFullError,
    RequestError,
)
from mlx_server.core.messages import EngineInfo, FinishReason, GenerateRequest, Priority
from mlx_server.core.step import StepPlan
from mlx_server.engine import generation_thread
from mlx_server.engine.generation_thread import StepExecutor
from mlx_server.engine.inproc import InProcessEngine
from mlx_server.services.batching.scheduler import Scheduler
from tests.fakes.lockstep import prompt_of, request
from tests.fakes.token_pool_runner import FakeModel, TokenPoolRunner
from tests.integration.engine.engines import (
    COMPLETE,
    PATIENCE_S,
    Gate,
    collect,
    engine_with,
    reference,
    running,
    until,
)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="mlx_server.engine")


def scheduler_of(engine: InProcessEngine) -> Scheduler:
    return engine.host.core.scheduler


async def until_idle(engine: InProcessEngine) -> None:
    """Nothing planned, nothing in flight, nothing held."""
    core = engine.host.core
    await until(lambda: not core.scheduler.has_work and not core._in_flight)
    core.scheduler.check_invariants()
    assert core.scheduler.stats().blocks_used == 0


def generation_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "mlx-generate"]


# ---- life and death of an engine -------------------------------------------------------------------


async def test_texts_are_right_and_the_thread_owns_the_runner() -> None:
    runner = TokenPoolRunner(64)
    async with running(runner) as engine:
        messages = [request(f"r{i}", prompt_of(30 + 9 * i, i % 2), 20, temperature=1.0, seed=i) for i in range(6)]
        results = await asyncio.gather(*(collect(engine, m) for m in messages))
        await until_idle(engine)
    for message, (tokens, last) in zip(messages, results, strict=True):
        assert tokens == reference(runner, message)
        assert last.finish_reason is FinishReason.LENGTH
    assert runner.violations == []
    assert runner.closed_on == "mlx-generate"


async def test_before_start_nothing_is_answered() -> None:
    engine = engine_with(TokenPoolRunner(8))
    with pytest.raises(EngineNotReadyError):
        _ = engine.info
    with pytest.raises(EngineNotReadyError):
        await anext(engine.generate(request("a", [5])))
    await engine.close()
    with pytest.raises(EngineDeadError):
        await engine.start()


async def test_close_ends_open_streams_and_joins_the_thread() -> None:
    runner = TokenPoolRunner(64)
    gate = Gate(lambda plan: plan.step_id == 5)
    runner._before_finish = gate
    engine = engine_with(runner)
    await engine.start()
    tasks = [asyncio.create_task(collect(engine, request(f"r{i}", prompt_of(20, i), 200))) for i in range(3)]
    await gate.reached()
    closing = asyncio.create_task(engine.close())
    results = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)
    assert [last.finish_reason for _, last in results] == [FinishReason.ABORT] * 3
    gate.open()
    await asyncio.wait_for(closing, PATIENCE_S)
    assert generation_threads() == []
    assert runner.closed_on == "mlx-generate"
    await asyncio.wait_for(engine.close(), PATIENCE_S)
    with pytest.raises(EngineDeadError):
        await anext(engine.generate(request("late", [5])))
    with pytest.raises(EngineDeadError):
        await engine.start()


async def test_a_load_failure_reaches_everybody_who_waits() -> None:
    may_fail = threading.Event()

    def load(progress: object) -> tuple[StepExecutor, EngineInfo]:
        assert may_fail.wait(PATIENCE_S)
        raise ModelLoadError("no such model")

    engine = engine_with(TokenPoolRunner(8))
    engine.host._make_executor = load
    waiting = [asyncio.create_task(engine.start()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(EngineNotReadyError):
        _ = engine.info
    may_fail.set()
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE_S)
    assert [type(o) for o in outcomes] == [ModelLoadError] * 3
    with pytest.raises(EngineDeadError, match="no such model"):
        _ = engine.info
    with pytest.raises(EngineDeadError, match="no such model"):
        await anext(engine.generate(request("a", [5])))
    await asyncio.wait_for(engine.close(), PATIENCE_S)
    assert generation_threads() == []


async def test_whatever_a_load_raises_is_a_model_load_error() -> None:
    def load(progress: object) -> tuple[StepExecutor, EngineInfo]:
        raise KeyError("model_type")

    engine = engine_with(TokenPoolRunner(8))
    engine.host._make_executor = load
    with pytest.raises(ModelLoadError, match="KeyError: 'model_type'"):
        await asyncio.wait_for(engine.start(), PATIENCE_S)
    await engine.close()


async def test_close_while_loading_ends_the_wait_for_it() -> None:
    runner, may_load = TokenPoolRunner(8), threading.Event()
    engine = engine_with(runner)
    load = engine.host._make_executor

    def slow(progress: object) -> tuple[StepExecutor, EngineInfo]:
        assert may_load.wait(PATIENCE_S)
        return load(progress)  # type: ignore[arg-type]

    engine.host._make_executor = slow
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    may_load.set()
    await asyncio.wait_for(closing, PATIENCE_S)
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(starting, PATIENCE_S)
    assert runner.closed_on == "mlx-generate"


async def test_progress_is_told_on_the_event_loop() -> None:
    seen: list[tuple[str, float, str]] = []
    runner = TokenPoolRunner(8)
    engine = engine_with(runner)
    info = runner.info(max_model_len=64)

    def load(progress: object) -> tuple[StepExecutor, EngineInfo]:
        progress("reading", 0.5)  # type: ignore[operator]
        return runner, info

    engine.host._make_executor = load
    engine.host._on_progress = lambda stage, f: seen.append((stage, f, threading.current_thread().name))
    await asyncio.wait_for(engine.start(), PATIENCE_S)
    await engine.close()
    assert seen == [("reading", 0.5, threading.main_thread().name)]


# ---- requests that are refused ---------------------------------------------------------------------


async def test_bad_requests_are_refused_before_anything_is_generated() -> None:
    runner = TokenPoolRunner(8)
    async with running(runner) as engine:
        for bad, field in (
            (request("a", [-1]), "prompt"),
            (request("a", [32_000]), "prompt"),
            (request("a", []), "prompt"),
            (request("a", [5], logit_bias={32_000: 1.0}), "logit_bias"),
            (request("a", [5], stop_token_ids=(40_000,)), "stop_token_ids"),
            (request("a", [5] * 256), "messages"),
        ):
            with pytest.raises(RequestError) as error:
                await collect(engine, bad)
            assert error.value.field == field
        assert (await collect(engine, request("a", [5])))[1].finish_reason is FinishReason.LENGTH
    assert {s.request_id for p in runner.plans for s in p.segments} == {"a"}


async def test_a_full_queue_is_told_to_the_caller() -> None:
    gate = Gate(lambda plan: True)
    runner = TokenPoolRunner(8, before_finish=gate)
    async with running(runner, max_num_seqs=1, max_queue=1) as engine:
        first = asyncio.create_task(collect(engine, request("r0", [5])))
        await gate.reached()
        second = asyncio.create_task(collect(engine, request("r1", [5])))
        await until(lambda: scheduler_of(engine).stats().waiting == 1)
        with pytest.raises(QueueFullError):
            await collect(engine, request("r2", [5]))
        gate.open()
        await asyncio.gather(first, second)


# ---- cancellation ----------------------------------------------------------------------------------


async def test_closing_the_iterator_frees_row_and_blocks() -> None:
    runner = TokenPoolRunner(64)
    async with running(runner) as engine:
        stream = engine.generate(request("a", prompt_of(40), 200))
        for _ in range(5):
            await asyncio.wait_for(anext(stream), PATIENCE_S)
        assert scheduler_of(engine).stats().blocks_used > 0
        await stream.aclose()  # type: ignore[attr-defined]
        await until_idle(engine)
        await until(lambda: runner.rows == {})
    assert runner.violations == []


async def test_a_cancelled_task_frees_row_and_blocks() -> None:
    runner = TokenPoolRunner(64)
    async with running(runner) as engine:
        task = asyncio.create_task(collect(engine, request("a", prompt_of(40), 200)))
        await until(lambda: scheduler_of(engine).stats().running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_idle(engine)


async def test_results_that_arrive_after_a_cancel_go_nowhere() -> None:
    gate = Gate(lambda plan: plan.step_id == 4)
    runner = TokenPoolRunner(64, before_finish=gate)
    async with running(runner) as engine:
        gone, stays = request("gone", prompt_of(40, 1), 50), request("stays", prompt_of(40, 2), 50)
        stream = engine.generate(gone)
        await asyncio.wait_for(anext(stream), PATIENCE_S)
        other = asyncio.create_task(collect(engine, stays))
        await gate.reached()
        generated = scheduler_of(engine).stats().generated_tokens
        await stream.aclose()  # type: ignore[attr-defined]
        assert scheduler_of(engine).stats().requests_finished == 1
        gate.open()
        tokens, _ = await other
        await until_idle(engine)
        assert scheduler_of(engine).stats().generated_tokens <= generated + 50
    assert tokens == reference(runner, stays)
    assert runner.violations == []


# ---- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("where", ["launch", "finish"])
async def test_a_step_that_fails_once_fails_nobody_and_the_thread_lives_on(where: str, overlaps: bool) -> None:
    runner = TokenPoolRunner(64, overlaps=overlaps)
    (runner.fail_launch if where == "launch" else runner.fail_finish).add(6)
    async with running(runner) as engine:
        messages = [request(f"r{i}", prompt_of(20, i), 40) for i in range(4)]
        results = await asyncio.gather(*(collect(engine, message) for message in messages))
        await until_idle(engine)
        assert scheduler_of(engine).stats().failed_steps == 1
    for message, (tokens, last) in zip(messages, results, strict=True):
        assert (tokens, last.finish_reason) == (reference(runner, message), FinishReason.LENGTH)
    assert runner.violations == []
    assert runner.resets == 1


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("where", ["launch", "finish", "named"])
async def test_who_makes_steps_fail_ends_with_the_reason_and_all_others_get_their_texts(
    where: str, overlaps: bool
) -> None:
    runner = TokenPoolRunner(64, overlaps=overlaps)
    if where == "named":
        runner.bad_rows.add("r2")
    else:
        (runner.poison_launch if where == "launch" else runner.poison)["r2"] = 45
    async with running(runner) as engine:
        messages = [request(f"r{i}", prompt_of(20, i), 40) for i in range(4)]
        results = await asyncio.gather(*(collect(engine, message) for message in messages))
        again = request("again", prompt_of(20), 40)
        results.append(await collect(engine, again))
        await until_idle(engine)
        assert runner.resets == scheduler_of(engine).stats().failed_steps <= 5
    bad_tokens, bad = results.pop(2)
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.error is not None
    assert bad.error == "RowError: a bad row" or bad.error.startswith(f"DeviceError: {where} of step ")
    assert bad_tokens == reference(runner, messages.pop(2))[: 0 if where == "named" else 25]
    for message, (tokens, last) in zip([*messages, again], results, strict=True):
        assert (tokens, last.finish_reason) == (reference(runner, message), FinishReason.LENGTH)
    assert runner.violations == []


async def test_a_runner_that_cannot_be_reset_ends_the_engine_not_the_wait() -> None:
    class Broken(TokenPoolRunner):
        def reset(self) -> None:
            raise OSError("the device is gone")

    runner = Broken(64)
    runner.fail_finish.add(3)
    async with running(runner) as engine:
        results = await asyncio.gather(*(collect(engine, request(f"r{i}", prompt_of(20, i), 40)) for i in range(3)))
        assert [last.finish_reason for _, last in results] == [FinishReason.ERROR] * 3
        assert "the device is gone" in (results[0][1].error or "")
        with pytest.raises(EngineDeadError, match="the device is gone"):
            await collect(engine, request("late", [5]))
    assert generation_threads() == []
    assert runner.closed_on == "mlx-generate"


async def test_a_bug_in_the_scheduler_ends_every_stream() -> None:
    runner = TokenPoolRunner(64)
    async with running(runner) as engine:
        scheduler = scheduler_of(engine)
        update = scheduler.update

        def buggy(plan: StepPlan, result: object) -> object:
            if plan.step_id == 4:
                raise ZeroDivisionError("a bug")
            return update(plan, result)  # type: ignore[arg-type]

        scheduler.update = buggy  # type: ignore[method-assign,assignment]
        late: list[BaseException] = []

        async def come_at_once() -> None:
            """In the very turn of the loop in which the first stream ends."""
            _, last = await collect(engine, request("r0", prompt_of(20), 40))
            assert last.finish_reason is FinishReason.ERROR
            assert last.error is not None
            assert "ZeroDivisionError: a bug" in last.error
            try:
                await collect(engine, request("late", [5]))
            except EngineDeadError as error:
                late.append(error)

        await asyncio.gather(come_at_once(), collect(engine, request("r1", prompt_of(20, 1), 40)))
        assert len(late) == 1
        with pytest.raises(EngineDeadError, match="a bug"):
            _ = engine.info
    assert generation_threads() == []


async def test_a_request_in_the_turn_in_which_the_loop_dies_is_refused() -> None:
    """Between the end of the loop and the callback that tells the engine, nobody would ever answer."""
    async with running(TokenPoolRunner(64)) as engine:
        core = engine.host.core
        assert core is not None
        core.ended = "the engine failed: a bug"
        with pytest.raises(EngineDeadError, match="a bug"):
            await collect(engine, request("late", [5]))


# ---- idle ------------------------------------------------------------------------------------------


async def test_idle_means_no_wakeups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread blocks without a timeout, the loop has no timer, and neither looks at anything."""
    gets: list[object] = []
    puts: list[object] = []

    class Inbox(queue.SimpleQueue):  # type: ignore[type-arg]
        def get(self, *args: object, **kwargs: object) -> object:
            gets.append((args, kwargs))
            return super().get(*args, **kwargs)  # type: ignore[arg-type]

        def put(self, item: object) -> None:  # type: ignore[override]
            puts.append(item)
            super().put(item)

    monkeypatch.setattr(generation_thread, "queue", SimpleNamespace(SimpleQueue=Inbox))
    runner = TokenPoolRunner(64)
    async with running(runner) as engine:
        core = engine.host.core
        assert core is not None
        looks: list[float] = []

        def clock() -> float:
            looks.append(0.0)
            return 0.0

        core._clock = clock
        await collect(engine, request("a", prompt_of(40), 20))
        await until_idle(engine)
        await until(lambda: len(gets) == len(puts) + 1)
        before = (len(looks), len(gets), len(runner.plans))
        timers = [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled()]  # type: ignore[attr-defined]
        for _ in range(200):
            await asyncio.to_thread(lambda: None)
        assert (len(looks), len(gets), len(runner.plans)) == before
        assert all(before)
        assert gets == [((), {})] * len(gets), "no timeout"
        assert timers == []


# ---- all at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("overlaps", [True, False])
async def test_500_requests_on_a_pool_too_small_for_them(overlaps: bool) -> None:
    runner = TokenPoolRunner(40, FakeModel(eos_one_in=90), max_num_seqs=16, overlaps=overlaps)
    rng = random.Random(7)
    documents = [prompt_of(150, seed) for seed in range(4)]
    messages = [make_message(i, rng, documents) for i in range(500)]
    ends: dict[str, FinishReason] = {}

    async def ask(engine: InProcessEngine, message: GenerateRequest, give_up_after: int | None) -> None:
        tokens: list[int] = []
        stream = engine.generate(message)
        async for delta in stream:
            tokens.extend(delta.token_ids)
            if delta.finish_reason is not None:
                assert message.request_id not in ends
                ends[message.request_id] = delta.finish_reason
            elif give_up_after is not None and len(tokens) > give_up_after:
                ends[message.request_id] = FinishReason.ABORT
                await stream.aclose()  # type: ignore[attr-defined]
                break
        full = reference(runner, message)
        assert tokens == (full if ends[message.request_id] in COMPLETE else full[: len(tokens)])

    async with running(runner, max_num_seqs=16) as engine:
        give_up = [rng.randrange(20) if rng.random() < 0.15 else None for _ in messages]
        tasks = [ask(engine, m, g) for m, g in zip(messages, give_up, strict=True)]
        await asyncio.wait_for(asyncio.gather(*tasks), 90)
        await until_idle(engine)
        stats = scheduler_of(engine).stats()
        assert stats.blocks_free + stats.blocks_cached == 40
        assert stats.preemptions > 0
        assert stats.evictions > 0
        assert stats.requests_finished == 500
        await until(lambda: runner.rows == {})
    assert len(ends) == 500
    assert set(ends.values()) == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT}
    assert runner.violations == []


def make_message(i: int, rng: random.Random, documents: list[tuple[int, ...]]) -> GenerateRequest:
    shared = rng.choice(documents)[: rng.choice([0, 10, 64, 100, 150])]
    return request(
        f"r{i}",
        (*shared, *prompt_of(rng.randrange(1, 30), seed=i)),
        rng.choice([1, 5, 20, 60, 100]),
        rng.choice(list(Priority)),
        temperature=rng.choice([0.0, 1.0]),
        seed=i,
    )
