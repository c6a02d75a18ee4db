"""The daemon on a real socket: loading behind the port, disconnects, and an orderly end."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx
import pytest

from mlx_server.core.errors import EngineDeadError, ModelLoadError, SettingsError
from mlx_server.core.settings import Settings
from mlx_server.daemon.server import serve
from mlx_server.daemon.server_thread import ServerThread
from tests.fakes import small_tokenizer
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, WAIT_S, events


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_tokenizer.model_folder(tmp_path_factory.mktemp("model"))


@dataclass
class Running:
    client: httpx.AsyncClient
    stop: asyncio.Event
    ready: asyncio.Event
    task: "asyncio.Task[None]"


@asynccontextmanager
async def running(folder: Path, engine: ScriptedEngine, grace_s: float = 5.0) -> AsyncIterator[Running]:
    stop, ready = asyncio.Event(), asyncio.Event()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = Settings(model=str(folder), served_model_name="small", port=0)
    task = asyncio.ensure_future(
        serve(
            settings,
            lambda settings, path, on_progress: engine,
            lambda url: ready.set(),
            on_listening=listening.set_result,
            stop=stop,
            grace_s=grace_s,
        )
    )
    try:
        async with asyncio.timeout(WAIT_S), httpx.AsyncClient(base_url=await listening, timeout=WAIT_S) as client:
            yield Running(client, stop, ready, task)
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(task, return_exceptions=True)


def chat(stream: bool = False) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hello"}], "stream": stream}


async def test_the_port_answers_while_the_model_loads(folder: Path) -> None:
    engine = ScriptedEngine(loading=asyncio.Event())
    async with running(folder, engine) as server:
        early = await server.client.post(URL, json=chat())
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) >= 1
        health = await server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        assert engine.loading is not None
        engine.loading.set()
        await server.ready.wait()
        assert (await server.client.get("/health")).json()["status"] == "ok"
        assert (await server.client.post(URL, json=chat())).status_code == 200


async def test_a_failed_load_ends_the_daemon_with_the_reason(folder: Path) -> None:
    engine = ScriptedEngine(load_error="weights are missing")
    with pytest.raises(ModelLoadError, match="weights are missing"):
        async with running(folder, engine) as server:
            await server.task
    assert engine.dead


async def test_a_folder_that_is_no_model_ends_the_daemon(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        async with running(tmp_path, ScriptedEngine()) as server:
            await server.task


async def test_a_dead_engine_ends_the_daemon(folder: Path) -> None:
    engine = ScriptedEngine()
    async with running(folder, engine) as server:
        await server.ready.wait()
        engine.dead = True
        with pytest.raises(EngineDeadError, match="scripted engine was stopped"):
            await server.task


async def test_a_stop_while_loading_ends_at_once(folder: Path) -> None:
    engine = ScriptedEngine(loading=asyncio.Event())
    async with running(folder, engine) as server:
        server.stop.set()
        await server.task
    assert not server.ready.is_set()


async def test_a_client_that_hangs_up_frees_its_row(folder: Path) -> None:
    engine = ScriptedEngine(stall_after=0)
    async with running(folder, engine) as server:
        await server.ready.wait()
        for stream in (False, True):
            engine.stalled.clear()
            request = asyncio.ensure_future(server.client.post(URL, json=chat(stream)))
            await engine.stalled.wait()
            assert engine.live
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            await engine.idle.wait()
        assert len(engine.closed_early) == 2


async def test_running_answers_may_end(folder: Path) -> None:
    engine = ScriptedEngine(stall_after=1)
    async with running(folder, engine) as server:
        await server.ready.wait()
        request = asyncio.ensure_future(server.client.post(URL, json=chat(stream=True)))
        await engine.stalled.wait()
        server.stop.set()
        engine.resume.set()
        response = await request
        assert events(response.text)[-1] == "DONE"
        await server.task
        with pytest.raises(httpx.ConnectError):
            await server.client.get("/health")
    assert engine.dead


async def test_answers_that_do_not_end_are_told_so(folder: Path) -> None:
    engine = ScriptedEngine(stall_after=1)
    async with running(folder, engine, grace_s=0.05) as server:
        await server.ready.wait()
        request = asyncio.ensure_future(server.client.post(URL, json=chat(stream=True)))
        await engine.stalled.wait()
        server.stop.set()
        *chunks, last = events((await request).text)
        assert chunks
        assert last["error"]["code"] == "engine_stopped"
        await server.task


async def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=str(port)):
            await serve(Settings(port=port), lambda settings, path, on_progress: ScriptedEngine())


def test_a_server_thread_in_another_process(folder: Path) -> None:
    settings = Settings(model=str(folder))
    with ServerThread(settings, lambda settings, path, on_progress: ScriptedEngine()) as server:
        assert server.url.startswith("http://127.0.0.1:")
        response = httpx.post(server.url + URL, json=chat(), timeout=WAIT_S)
        assert response.status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health", timeout=WAIT_S)
    server.stop()


def test_a_server_thread_raises_why_the_load_failed(folder: Path) -> None:
    settings = Settings(model=str(folder))
    with (
        pytest.raises(ModelLoadError, match="no luck"),
        ServerThread(settings, lambda settings, path, on_progress: ScriptedEngine(load_error="no luck")),
    ):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_cleanly(folder: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.fakes.serve_scripted", str(folder)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.stream("POST", url + URL, json=chat(stream=True), timeout=WAIT_S) as response:
                lines = response.iter_lines()
                assert "assistant" in next(lines)
                process.send_signal(number)
                assert any("engine_stopped" in line for line in lines)
            _, errors = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in errors
