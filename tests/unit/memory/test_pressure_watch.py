"""The watch: when it reads, and whom it tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from mlx_server.api.serving import LoadedModel, ServingState
from mlx_server.chat.defaults import SamplingDefaults
from mlx_server.core.errors import EngineNotReadyError, SettingsError
from mlx_server.core.messages import MemoryLevel
from mlx_server.core.settings import Settings, load_settings
from mlx_server.daemon.pressure import Pace, PressureWatch
from tests.fakes import small_tokenizer
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.scripted_memory import ScriptedMemory, used
from tests.integration.api.live import running

NORMAL, WARN, CRITICAL = MemoryLevel
WAIT_S = 10.0
FAST = Pace(0.005, 0.005, dict.fromkeys(MemoryLevel, 0.005))
NEVER_S = 3600.0
ONLY_EVENTS = Pace(0.005, 0.005, dict.fromkeys(MemoryLevel, NEVER_S))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(started=True)


@pytest.fixture
def serving(engine: ScriptedEngine) -> ServingState:
    state = ServingState(Settings())
    state.model = LoadedModel(engine, engine.info, small_tokenizer.shared(), SamplingDefaults())
    return state


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.001)


async def test_the_engine_is_told_each_new_level(serving: ServingState, engine: ScriptedEngine) -> None:
    memory = ScriptedMemory()
    watch = PressureWatch(serving, memory, FAST)
    watch.start()
    assert serving.memory == used(50)
    assert set(memory.processes) == {"daemon"}
    for percent, level in ((86, WARN), (96, CRITICAL)):
        memory.show(used(percent))
        await until(lambda level=level: engine.memory_level is level)  # type: ignore[misc]
        assert (serving.memory, serving.memory_level) == (used(percent), level)
    await watch.stop()
    reads = memory.reads
    memory.show(used(50))
    await asyncio.sleep(0.02)  # several intervals
    assert (memory.reads, memory.closed) == (reads, True)


async def test_an_engine_that_comes_later_is_told_once(
    serving: ServingState, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, serving.model = serving.model, None
    memory = ScriptedMemory(used(90))
    watch = PressureWatch(serving, memory, FAST)
    watch.start()
    refusals = [EngineNotReadyError(), EngineNotReadyError()]
    told = []

    async def refuse_at_first(level: MemoryLevel) -> None:
        if refusals:
            raise refusals.pop()
        told.append(level)

    monkeypatch.setattr(engine, "set_memory_level", refuse_at_first)
    serving.model = model
    await until(lambda: bool(told))
    reads = memory.reads
    await until(lambda: memory.reads > reads + 2)
    assert (refusals, told) == ([], [WARN])
    await watch.stop()


async def test_the_process_of_the_engine_is_read_too(serving: ServingState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedEngine, "pid", 4711)
    memory = ScriptedMemory()
    watch = PressureWatch(serving, memory, ONLY_EVENTS)
    watch.start()
    assert memory.processes["engine"] == 4711
    await watch.stop()


async def test_an_idle_watch_waits_for_events_and_for_work(serving: ServingState) -> None:
    memory = ScriptedMemory()
    watch = PressureWatch(serving, memory, ONLY_EVENTS)
    watch.start()
    await asyncio.sleep(0.02)
    assert memory.reads == 1
    memory.show(used(60))  # the system tells
    await until(lambda: memory.reads == 2)
    await asyncio.sleep(0.02)
    assert memory.reads == 2

    async def deltas() -> AsyncGenerator[int, None]:
        yield 1

    async with serving.reading(deltas()):  # a request
        await until(lambda: memory.reads > 5)
    assert serving.answering == 0
    await asyncio.sleep(0.02)
    reads = memory.reads
    await asyncio.sleep(0.02)
    assert memory.reads == reads
    await watch.stop()


async def test_events_do_not_make_it_read_faster_than_it_may(serving: ServingState) -> None:
    memory, least_s = ScriptedMemory(), 0.05
    watch = PressureWatch(serving, memory, Pace(least_s, least_s, dict.fromkeys(MemoryLevel, NEVER_S)))
    started_s = time.monotonic()
    watch.start()
    while memory.reads < 5:
        memory.show(used(60))
        await asyncio.sleep(0)
    assert time.monotonic() - started_s >= 4 * least_s
    await watch.stop()


async def test_a_machine_that_cannot_be_read_is_tried_again(
    serving: ServingState, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    watch = PressureWatch(serving, ScriptedMemory(OSError("no"), OSError("no"), used(90)), FAST)
    watch.start()
    assert serving.memory is None
    await until(lambda: engine.memory_level is WARN)
    assert sum("cannot be read" in record.getMessage() for record in caplog.records) == 1
    await watch.stop()


async def test_a_watch_that_fails_says_so(
    serving: ServingState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = ScriptedMemory()
    watch = PressureWatch(serving, memory, FAST)
    watch.start()
    monkeypatch.setattr(memory, "read", lambda processes: {}["nothing"])
    await until(lambda: "memory is not watched any more" in caplog.text)
    await watch.stop()
    assert memory.closed


async def test_the_daemon_shows_what_it_reads(tmp_path: Path) -> None:
    folder = small_tokenizer.model_folder(tmp_path)
    memory = ScriptedMemory(used(90, os_level=NORMAL, footprint_bytes={"daemon": 7}))
    async with running(folder, ScriptedEngine(), memory) as server:
        shown = (await server.client.get("/health")).json()["memory"]
    assert (shown["level"], shown["os_level"], shown["used_percent"]) == ("warn", "normal", 90.0)
    assert (shown["total_bytes"], shown["footprint_bytes"]) == (16 << 30, {"daemon": 7})
    assert "cgroup_limit_bytes" not in shown
    assert memory.closed


def test_a_warning_comes_before_it_is_critical() -> None:
    with pytest.raises(SettingsError, match="memory_warn_percent = 96 must be at most memory_critical_percent = 95"):
        load_settings(memory_warn_percent=96)
    with pytest.raises(SettingsError, match="memory_warn_percent"):
        load_settings(memory_warn_percent=30)
