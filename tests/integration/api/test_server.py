"""The daemon on a real socket: loading behind the port, disconnects, and an orderly end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import pytest

from mlx_server.core.errors import EngineDeadError, ModelLoadError, SettingsError
from mlx_server.core.settings import Settings
from mlx_server.daemon.server import serve
from mlx_server.daemon.server_thread import ServerThread
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, WAIT_S, events
from tests.integration.api.live import running


def chat(stream: bool = False) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hello"}], "stream": stream}


async def test_the_port_answers_while_the_model_loads(folder: Path) -> None:
    engine = ScriptedEngine(loading=asyncio.Event())
    async with running(folder, engine) as server:
        early = await server.client.post(URL, json=chat())
        assert early.status_code == 503
        assert int(early.headers["retry-after"]) >= 1
        health = await server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "loading")
        not_yet = await server.client.get("/ready")
        assert (not_yet.status_code, not_yet.json()["status"]) == (503, "loading")
        assert int(not_yet.headers["retry-after"]) >= 1
        assert engine.loading is not None
        engine.loading.set()
        await server.ready.wait()
        assert (await server.client.get("/health")).json()["status"] == "ok"
        assert (await server.client.get("/ready")).status_code == 200
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
        assert (await server.client.get("/ready")).status_code == 503
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


async def test_what_comes_while_it_drains_is_refused(folder: Path) -> None:
    """On a connection that was open before; the port takes no new ones."""
    engine = ScriptedEngine(stall_after=1)
    async with running(folder, engine) as server:
        await server.ready.wait()
        request = asyncio.ensure_future(server.client.post(URL, json=chat(stream=True)))
        await engine.stalled.wait()
        early, late = await server.connect(), await server.connect()
        for peer in (early, late):
            peer.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert json.loads((await peer.answer()).body)["status"] == "ok"
        server.stop.set()
        ready = 200
        while ready == 200:
            early.send(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
            not_ready = await early.answer()
            ready = not_ready.status
        assert (ready, json.loads(not_ready.body)["status"]) == (503, "draining")
        body = json.dumps(chat()).encode()
        head = f"POST {URL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        late.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        refused = await late.rest()
        assert (refused.status, refused.code) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) >= 1
        with pytest.raises(ConnectionRefusedError):
            await server.connect()
        engine.resume.set()
        assert events((await request).text)[-1] == "DONE"
        await server.task


async def test_answers_that_do_not_end_are_told_so(folder: Path) -> None:
    engine = ScriptedEngine(stall_after=1)
    async with running(folder, engine, drain_s=0.05) as server:
        await server.ready.wait()
        request = asyncio.ensure_future(server.client.post(URL, json=chat(stream=True)))
        await engine.stalled.wait()
        server.stop.set()
        *chunks, last = events((await request).text)
        assert chunks
        assert last["error"]["code"] == "shutting_down"
        await server.task


async def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=str(port)):
            await serve(Settings(port=port), lambda settings, path, on_progress: ScriptedEngine())


def test_the_limit_of_open_files_is_raised() -> None:
    """From launchd's 256 to what the connections need."""
    script = (
        "import resource as r; from mlx_server.daemon.http_server import raise_file_limit as f;"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, r.getrlimit(r.RLIMIT_NOFILE)[1])); f(512);"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[3], capture_output=True, check=True
    )
    assert int(done.stdout) >= 1024


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
    env = {**os.environ, "MLX_SERVE_DRAIN_S": "0.2"}
    with subprocess.Popen(
        command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with httpx.stream("POST", url + URL, json=chat(stream=True), timeout=WAIT_S) as response:
                lines = response.iter_lines()
                assert "assistant" in next(lines)
                process.send_signal(number)
                assert any("shutting_down" in line for line in lines)
            _, errors = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in errors
