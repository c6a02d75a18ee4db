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
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_RUN = "from mlx_server.cli.main import main; main()"


@contextmanager
def server(folder: Path, *flags: str) -> Iterator[str]:
    """Base URL of a running daemon; ended by its own id on leaving."""
    command = [sys.executable, "-c", _RUN, "serve", "--model", str(folder), "--served-model-name", "bench"]
    command += ["--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ)
    try:
        yield _wait_for_url(process)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            return found[0]
    raise RuntimeError("the server ended before it was ready")


@dataclass
class Answer:
    """Times are seconds on `time.perf_counter`, one entry per chunk with text."""

    started_s: float
    times: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.times[0] - self.started_s

    @property
    def tokens_per_chunk(self) -> float:
        """1, or a little more where a token by itself was no whole character."""
        return float(self.usage["completion_tokens"]) / len(self.times)


async def ask(url: str, text: str, max_tokens: int, **fields: Any) -> Answer:
    """One streamed chat completion with exactly `max_tokens` tokens.

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
    answer = Answer(time.perf_counter())
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
    return answer


def _take(answer: Answer, line: bytes) -> None:
    if b'"usage":{' in line:
        answer.usage = json.loads(line[6:])["usage"]
    elif b'"content":"' in line and b'"content":""' not in line:
        answer.times.append(time.perf_counter())


async def ask_all(url: str, texts: list[str], max_tokens: int, **fields: Any) -> list[Answer]:
    """All at the same time."""
    return list(await asyncio.gather(*(ask(url, text, max_tokens, **fields) for text in texts)))
