"""A real `mlx-serve serve` in a process of its own, and a bare streaming client that keeps the time of every chunk."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

_RUN = "from mlx_server.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that has loaded its model."""

    url: str
    pid: int

    @property
    def engine_pid(self) -> int | None:
        """The engine's process of this moment; None where the engine runs in the daemon's, or is being replaced."""
        return next((child.pid for child in psutil.Process(self.pid).children()), None)

    @property
    def pids(self) -> dict[str, int]:
        """Its processes by their part."""
        engine = self.engine_pid
        return {"daemon": self.pid} | ({"engine": engine} if engine is not None else {})


def serve_command(model: str, *flags: str) -> list[str]:
    """`mlx-serve serve` in this interpreter."""
    return [sys.executable, "-c", _RUN, "serve", "--model", model, "--served-model-name", "bench", *flags]


@contextmanager
def daemon(model: str, *flags: str, **environment: str) -> Iterator[Daemon]:
    """Yields when the model is loaded; ended by its own id on leaving. model: a folder, or `demo`."""
    process = subprocess.Popen(
        serve_command(model, "--port", "0", *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield Daemon(_wait_for_url(process), process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def server(folder: Path, *flags: str) -> Iterator[str]:
    """Base URL of a running daemon."""
    with daemon(str(folder), *flags) as running:
        yield running.url


def _wait_for_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            return found[0]
    raise RuntimeError("the server ended before it was ready")


@dataclass
class Answer:
    """Times are seconds on `time.perf_counter`, one entry per chunk with text; `lines` are these chunks."""

    started_s: float
    times: list[float] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.times[0] - self.started_s

    @property
    def tokens_per_chunk(self) -> float:
        """1, or a little more where a token by itself was no whole character."""
        return float(self.usage["completion_tokens"]) / len(self.times)

    @cached_property
    def text(self) -> str:
        """The whole answer, once it has ended."""
        return "".join(json.loads(line[6:])["choices"][0]["delta"]["content"] for line in self.lines)


async def ask(url: str, text: str, max_tokens: int, **fields: Any) -> Answer:
    """One streamed chat completion with exactly `max_tokens` tokens."""
    answer = Answer(time.perf_counter())
    await ask_into(answer, url, text, max_tokens, **fields)
    return answer


async def ask_into(answer: Answer, url: str, text: str, max_tokens: int, **fields: Any) -> None:
    """As `ask`, for one who looks at the answer while it grows.

    A bare socket and no JSON parsing of tokens: the client shares the machine with the server it measures, and a
    full client library would take a tenth of it.
    """
    body = {
        "model": "bench",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    payload = json.dumps(body).encode()
    host = urlsplit(url).netloc
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(*host.split(":"), limit=1 << 20)
    try:
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status!r} {await reader.read()!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                _take(answer, line)
    finally:
        writer.close()


def _take(answer: Answer, line: bytes) -> None:
    if b'"usage":{' in line:
        answer.usage = json.loads(line[6:])["usage"]
    elif b'"content":"' in line and b'"content":""' not in line:
        answer.times.append(time.perf_counter())
        answer.lines.append(line)


async def ask_all(url: str, texts: list[str], max_tokens: int, **fields: Any) -> list[Answer]:
    """All at the same time."""
    return list(await asyncio.gather(*(ask(url, text, max_tokens, **fields) for text in texts)))
