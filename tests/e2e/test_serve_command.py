"""`mlx-serve serve` as a process: started, asked, ended."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import httpx2
import psutil

MLX_SERVE = [sys.executable, "-c", "from mlx_server.cli.main import main; main()"]
WAIT_S = 60


class Daemon:
    """A daemon as a process of its own."""

    def __init__(self, **settings: str) -> None:
        names = {f"MLX_SERVE_{name.upper()}": value for name, value in settings.items()}
        env = {**os.environ, **names, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        command = [*MLX_SERVE, "serve", "--port", "0", "--kv-memory", "32MB"]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def printed(self) -> list[str]:
        """What it prints until it is ready, or until its end."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("curl "):
                break
        return lines

    def url(self) -> str:
        """Once it is ready, without `/v1`."""
        text = "".join(self.printed())
        found = re.search(r"base URL +(http://127\.0\.0\.1:\d+)/v1", text)
        assert found, text + self.end()
        return found[1]

    def processes(self) -> list[psutil.Process]:
        """It and its children."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def end(self) -> str:
        """Wait for its end, and return what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=WAIT_S)
        return errors


@contextmanager
def daemon(**settings: str) -> Iterator[Daemon]:
    started = Daemon(**settings)
    with started.process:
        try:
            yield started
        finally:
            if started.process.poll() is None:
                for process in reversed(started.processes()):
                    process.kill()


@contextmanager
def long_stream(url: str, max_tokens: int) -> Iterator[Iterator[str]]:
    """The lines of an answer that has begun."""
    body = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream": True,
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    client = httpx2.Client(timeout=WAIT_S, trust_env=False)
    with client, client.stream("POST", url + "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


def test_serve_prints_its_address_and_answers() -> None:
    with daemon() as started:
        printed = started.printed()
        text = "".join(printed)
        found = re.search(r"base URL +(http://127\.0\.0\.1:\d+)/v1", text)
        assert found, text
        assert re.search(r"KV pool +[\d,]+ blocks, [\d.]+ MB, [\d,]+ tokens", text)

        _, url, _, header, _, body = shlex.split(printed[-1])
        assert url == found[1] + "/v1/chat/completions"
        name, _, value = header.partition(": ")
        answer = httpx2.post(url, content=body, headers={name: value}, timeout=WAIT_S, trust_env=False)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"]


class TestTheEnd:
    def test_an_answer_that_runs_is_finished_and_nothing_is_left(self) -> None:
        with daemon(drain_s="60") as started:
            url = started.url()
            processes = started.processes()
            with long_stream(url, max_tokens=100) as lines, httpx2.Client(base_url=url, trust_env=False) as idle:
                assert idle.get("/ready").status_code == 200
                started.process.send_signal(signal.SIGTERM)
                refused = until_refused(idle)
                assert int(refused.headers["retry-after"]) >= 1
                assert [line for line in lines if line][-1] == "data: [DONE]"
            errors = started.end()
            assert started.process.returncode == 0, errors
            assert "Traceback" not in errors
            assert not [process for process in processes if process.is_running()]

    def test_an_answer_that_takes_too_long_is_told_why(self) -> None:
        with daemon(drain_s="0.3") as started, long_stream(started.url(), max_tokens=4000) as lines:
            processes = started.processes()
            started.process.send_signal(signal.SIGTERM)
            last = [line for line in lines if line][-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
            errors = started.end()
            assert started.process.returncode == 0, errors
            assert not [process for process in processes if process.is_running()]

    def test_a_second_signal_does_not_wait(self) -> None:
        with daemon(drain_s="600") as started:
            url = started.url()
            with long_stream(url, max_tokens=4000) as lines, httpx2.Client(base_url=url, trust_env=False) as idle:
                assert idle.get("/ready").status_code == 200
                started.process.send_signal(signal.SIGTERM)
                until_refused(idle)
                started.process.send_signal(signal.SIGTERM)
                assert "shutting_down" in [line for line in lines if line][-1]
            errors = started.end()
            assert started.process.returncode == 0, errors
            assert "Traceback" not in errors


def until_refused(client: httpx2.Client) -> httpx2.Response:
    """The first answer that says that the daemon ends; the signal takes a moment to arrive."""
    deadline = monotonic() + WAIT_S
    while (response := client.get("/ready")).status_code == 200:
        assert monotonic() < deadline
    assert response.json()["status"] == "draining"
    return response
