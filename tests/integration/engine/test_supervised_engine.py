"""An engine in a process of its own: whatever happens to the process, every request gets the text it would have had."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from mlx_server.core.errors import (
    EngineDeadError,
    EngineNotReadyError,
    MemoryPressureError,
    ModelLoadError,
    QueueFullError,
    RequestError,
)
from mlx_server.core.messages import FinishReason, GenerateRequest, MemoryLevel, TokenDelta
from mlx_server.core.settings import Settings
from mlx_server.engine import supervisor, watchdog
from mlx_server.engine.streams import PAUSE_AT
from mlx_server.engine.supervisor import SupervisedEngine
from tests.fakes.lockstep import prompt_of, request
from tests.fakes.token_pool_engine import COMMAND, HANGS_ONCE, KILLS, KILLS_LATER, MODEL

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="mlx_server.engine")


def engine_at(folder: Path, **settings: object) -> SupervisedEngine:
    """Not started."""
    return SupervisedEngine(Settings(**settings), folder, "fake", command=COMMAND)  # type: ignore[arg-type]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SupervisedEngine]:
    engine = engine_at(tmp_path)
    try:
        await asyncio.wait_for(engine.start(), PATIENCE_S)
        yield engine
    finally:
        await asyncio.wait_for(engine.close(), PATIENCE_S)


async def collect(engine: SupervisedEngine, message: GenerateRequest) -> tuple[list[int], TokenDelta]:
    """Every token, and the last delta."""
    tokens: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        async for delta in engine.generate(message):
            assert delta.request_id == message.request_id
            tokens.extend(delta.token_ids)
    return tokens, delta


def truth(message: GenerateRequest) -> list[int]:
    return MODEL.reference_text(message.prompt_token_ids, message.sampling, message.sampling.max_tokens)[0]


def check(messages: list[GenerateRequest], results: list[tuple[list[int], TokenDelta]]) -> None:
    for message, (tokens, last) in zip(messages, results, strict=True):
        assert last.finish_reason is FinishReason.LENGTH, last
        assert tokens == truth(message), message.request_id


def mixed(count: int, max_tokens: int = 120) -> list[GenerateRequest]:
    """Greedy and seeded ones, some with a common start."""
    return [
        request(
            f"r{i}",
            (*prompt_of(70, i % 3), *prompt_of(9 + i, i)),
            max_tokens,
            temperature=float(i % 2),
            seed=i,
            presence_penalty=float(i % 4 == 3),
        )
        for i in range(count)
    ]


async def pid_of(engine: SupervisedEngine) -> int:
    return (await engine.stats()).pid


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again: what is waited for happens in another process."""
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def until_running(engine: SupervisedEngine, tokens: int) -> None:
    """Until the process has generated so many tokens."""

    async def holds() -> bool:
        return (await engine.stats()).generated_tokens >= tokens

    await until(holds)


async def until_idle(engine: SupervisedEngine) -> None:
    async def holds() -> bool:
        stats = await engine.stats()
        return stats.running == stats.waiting == stats.blocks_used == 0

    await until(holds)


async def until_paused(engine: SupervisedEngine) -> None:
    """Until the only request has given its row up."""

    async def holds() -> bool:
        stats = await engine.stats()
        return stats.generated_tokens >= PAUSE_AT and not stats.running

    await until(holds)


async def until_back(engine: SupervisedEngine) -> None:
    async def holds() -> bool:
        return not engine.is_restarting

    await until(holds)


async def until_down(engine: SupervisedEngine) -> None:
    async def holds() -> bool:
        return engine.is_restarting

    await until(holds)


async def kill(engine: SupervisedEngine, number: int = signal.SIGKILL) -> None:
    os.kill(await pid_of(engine), number)


# ---- one process -----------------------------------------------------------------------------------


async def test_texts_are_right_and_come_from_another_process(engine: SupervisedEngine) -> None:
    messages = mixed(12)
    check(messages, await asyncio.gather(*(collect(engine, m) for m in messages)))
    assert await pid_of(engine) != os.getpid()
    await until_idle(engine)


async def test_what_is_wrong_with_a_request_crosses_the_boundary(tmp_path: Path) -> None:
    engine = engine_at(tmp_path, max_queue=1, max_num_seqs=1, max_num_batched_tokens=64)
    await engine.start()
    with pytest.raises(RequestError, match="outside"):
        await collect(engine, request("ids", [5, 1 << 20]))
    with pytest.raises(RequestError, match="maximum context length"):
        await collect(engine, request("long", prompt_of(4000)))
    flood = [request(f"q{i}", prompt_of(900, i), 100) for i in range(80)]
    results = await asyncio.gather(*(collect(engine, m) for m in flood), return_exceptions=True)
    refused = [r for r in results if isinstance(r, QueueFullError)]
    assert refused and refused[0].retry_after_s >= 1
    served = [(m, r) for m, r in zip(flood, results, strict=True) if not isinstance(r, BaseException)]
    check([m for m, _ in served], [r for _, r in served])
    await engine.close()


async def test_closing_a_stream_frees_its_row(engine: SupervisedEngine) -> None:
    stream = engine.generate(request("a", prompt_of(40), 500))
    await anext(stream)
    await stream.aclose()
    await until_idle(engine)


async def test_close_ends_streams_and_leaves_no_process(tmp_path: Path) -> None:
    engine = engine_at(tmp_path)
    await engine.start()
    pid = await pid_of(engine)
    tasks = [asyncio.create_task(collect(engine, m)) for m in mixed(3, 900)]
    await until_running(engine, 10)
    await engine.close()
    assert [last.finish_reason for _, last in await asyncio.gather(*tasks)] == [FinishReason.ABORT] * 3
    assert not psutil.pid_exists(pid)
    with pytest.raises(EngineDeadError):
        await collect(engine, request("late", [5]))
    await engine.close()


async def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    engine = engine_at(tmp_path)
    with pytest.raises(ModelLoadError, match="the folder is broken"):
        await asyncio.wait_for(engine.start(), PATIENCE_S)
    with pytest.raises(EngineDeadError, match="the folder is broken"):
        _ = engine.info
    await engine.close()


async def test_a_process_that_dies_while_loading(tmp_path: Path) -> None:
    engine = SupervisedEngine(Settings(), tmp_path, "fake", command=(sys.executable, "-c", "raise SystemExit(7)"))
    with pytest.raises(ModelLoadError, match="status 7"):
        await asyncio.wait_for(engine.start(), PATIENCE_S)
    await engine.close()


async def test_a_process_that_cannot_be_started(tmp_path: Path) -> None:
    engine = SupervisedEngine(Settings(), tmp_path, "fake", command=(str(tmp_path / "missing"),))
    with pytest.raises(ModelLoadError, match="no process can be started"):
        await asyncio.wait_for(engine.start(), PATIENCE_S)
    await engine.close()


def test_nothing_is_imported_from_the_folder_of_the_start(tmp_path: Path) -> None:
    """A folder with a file named like a module must not run it."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit(99)")
    ended = subprocess.run(
        [*supervisor.ENGINE_COMMAND, "--help"], cwd=tmp_path, capture_output=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0


# ---- its death -------------------------------------------------------------------------------------


async def test_killed_in_the_middle_of_16_streams(engine: SupervisedEngine) -> None:
    messages = mixed(16)
    tasks = [asyncio.create_task(collect(engine, m)) for m in messages]
    await until_running(engine, 300)
    await kill(engine)
    check(messages, await asyncio.gather(*tasks))
    await until_idle(engine)
    stats = await engine.stats()
    assert (stats.restarts, stats.resumed) == (1, 16)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
async def test_killed_again_and_again(engine: SupervisedEngine, number: int) -> None:
    """Also while it loads, and before anybody got a token."""
    rng = random.Random(number)
    messages = mixed(8, 200)
    tasks = [asyncio.create_task(collect(engine, m)) for m in messages]
    for _ in range(3):
        await until_running(engine, rng.randrange(20, 200))
        await kill(engine, number)
        await until_down(engine)
        await until_back(engine)
    check(messages, await asyncio.gather(*tasks))


async def test_a_request_that_comes_during_the_restart_waits_for_it(engine: SupervisedEngine) -> None:
    await kill(engine)
    await until_down(engine)
    assert engine.info.model_id == "fake"
    message = request("a", prompt_of(40), 20)
    check([message], [await collect(engine, message)])


@pytest.mark.parametrize(("poison", "deaths"), [(KILLS, 3), (KILLS_LATER, 5)])
async def test_a_request_that_kills_the_engine_fails_alone(engine: SupervisedEngine, poison: int, deaths: int) -> None:
    """One that kills at once is found at the third death, one that kills later at the fifth at the latest, since
    it was beyond doubt like the others till then.
    """
    messages = mixed(8, 150)
    tasks = [asyncio.create_task(collect(engine, m)) for m in messages]
    await until_running(engine, 200)
    bad = request("bad", (*prompt_of(50, 99), poison, 7), 50)
    tokens, last = await collect(engine, bad)
    assert last.finish_reason is FinishReason.ERROR
    assert last.error is not None and "ended the engine twice" in last.error
    assert tokens == truth(bad)[: len(tokens)]
    check(messages, await asyncio.gather(*tasks))
    assert 3 <= (await engine.stats()).restarts <= deaths
    await until_idle(engine)


async def test_two_poisoned_requests_at_once(engine: SupervisedEngine) -> None:
    messages = mixed(6, 150)
    bad = [request(f"bad{i}", (*prompt_of(50, 90 + i), KILLS), 50) for i in range(2)]
    results = await asyncio.gather(*(collect(engine, m) for m in [*messages, *bad]))
    check(messages, list(results[:6]))
    assert [last.finish_reason for _, last in results[6:]] == [FinishReason.ERROR] * 2


async def test_a_step_that_never_ends(tmp_path: Path) -> None:
    engine = engine_at(tmp_path, step_timeout_s=1)
    await engine.start()
    messages = mixed(6, 150)
    tasks = [asyncio.create_task(collect(engine, m)) for m in messages]
    await until_running(engine, 50)
    hangs = request("hangs", (*prompt_of(50, 99), HANGS_ONCE), 20)
    check([hangs], [await collect(engine, hangs)])
    check(messages, await asyncio.gather(*tasks))
    assert (await engine.stats()).restarts == 1
    await engine.close()


async def test_a_process_that_is_stopped(engine: SupervisedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SILENCE_S", 2.5)
    await kill(engine)  # the next process is watched with that patience
    messages = mixed(4, 300)
    tasks = [asyncio.create_task(collect(engine, m)) for m in messages]
    await until_running(engine, 50)
    await kill(engine, signal.SIGSTOP)
    check(messages, await asyncio.gather(*tasks))
    assert (await engine.stats()).restarts == 2


async def test_an_idle_process_is_not_watched(engine: SupervisedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing polls: no timer on the daemon's side, and no frame comes."""
    message = request("a", prompt_of(40), 20)
    await collect(engine, message)
    await until_idle(engine)
    timers = [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled()]  # type: ignore[attr-defined]
    assert timers == []


async def test_the_model_disappears_and_comes_back(
    engine: SupervisedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_BACKOFF_S", 0.2)
    task = asyncio.create_task(collect(engine, request("a", prompt_of(40), 900)))
    await until_running(engine, 10)
    (tmp_path / "broken").touch()
    await kill(engine)
    _, last = await task
    assert last.finish_reason is FinishReason.ABORT
    assert last.error is not None and "the folder is broken" in last.error
    with pytest.raises(EngineNotReadyError, match="cannot be restarted"):
        await collect(engine, request("b", prompt_of(40), 5))
    (tmp_path / "broken").unlink()
    await until_back(engine)
    message = request("c", prompt_of(40), 20)
    check([message], [await collect(engine, message)])


def test_the_process_dies_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    """Also when it hangs by then: on Linux the kernel ends it."""
    script = f"""
import asyncio
from pathlib import Path
from mlx_server.core.settings import Settings
from mlx_server.engine.supervisor import SupervisedEngine
from tests.fakes.lockstep import prompt_of, request
from tests.fakes.token_pool_engine import COMMAND, HANGS_ONCE

async def main():
    engine = SupervisedEngine(Settings(), Path({str(tmp_path)!r}), "fake", command=COMMAND)
    await engine.start()
    print((await engine.stats()).pid, flush=True)
    async for _ in engine.generate(request("hangs", (*prompt_of(50), HANGS_ONCE), 20)):
        pass

asyncio.run(main())
"""
    daemon = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    engine = psutil.Process(int(daemon.stdout.readline()))
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "hung").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    engine.wait(PATIENCE_S)


async def test_many_restarts_leak_no_descriptor_and_no_thread(engine: SupervisedEngine) -> None:
    me = psutil.Process()
    message = request("a", prompt_of(40), 400)

    async def once() -> tuple[int, int]:
        task = asyncio.create_task(collect(engine, message))
        await until_running(engine, 5)
        await kill(engine)
        check([message], [await task])
        await until_idle(engine)
        return me.num_fds(), len(me.children())

    before = await once()
    for _ in range(4):
        after = await once()
    assert after == before


# ---- memory ----------------------------------------------------------------------------------------


async def test_short_of_memory_the_engine_and_its_successor_begin_nothing_new(engine: SupervisedEngine) -> None:
    runs = request("runs", prompt_of(40, 1), 400)
    task = asyncio.create_task(collect(engine, runs))
    await until_running(engine, 5)
    await engine.set_memory_level(MemoryLevel.CRITICAL)
    with pytest.raises(MemoryPressureError):
        await collect(engine, request("late", prompt_of(40, 2)))
    await kill(engine)
    await until_down(engine)
    await until_back(engine)
    with pytest.raises(MemoryPressureError):
        await collect(engine, request("later", prompt_of(40, 3)))
    await engine.set_memory_level(MemoryLevel.NORMAL)
    check([runs], [await task])


# ---- slow readers ----------------------------------------------------------------------------------


async def test_a_reader_that_stops_gives_up_its_row_and_loses_nothing(engine: SupervisedEngine) -> None:
    slow = request("slow", prompt_of(40, 1), PAUSE_AT + 400)
    stream = engine.generate(slow)
    tokens = [*(await anext(stream)).token_ids]
    await until_paused(engine)
    neighbour = request("neighbour", prompt_of(40, 2), 50)
    check([neighbour], [await collect(engine, neighbour)])
    last: TokenDelta | None = None
    async for delta in stream:
        tokens.extend(delta.token_ids)
        last = delta
    assert last is not None and last.finish_reason is FinishReason.LENGTH
    assert tokens == truth(slow)
    await until_idle(engine)


async def test_the_engine_dies_while_a_request_is_paused(engine: SupervisedEngine) -> None:
    slow = request("slow", prompt_of(40, 1), PAUSE_AT + 100)
    stream = engine.generate(slow)
    tokens = [*(await anext(stream)).token_ids]
    await until_paused(engine)
    await kill(engine)
    async for delta in stream:
        tokens.extend(delta.token_ids)
    assert tokens == truth(slow)
