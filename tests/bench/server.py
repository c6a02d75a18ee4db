"""A real `mlx-serve serve` in a process of its own, and a streaming client that keeps the time of every token."""

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

import httpx2

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
    """Times are seconds on `time.perf_counter`; one entry per streamed chunk with text or a token."""

    started_s: float
    times: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.times[0] - self.started_s


async def ask(client: httpx2.AsyncClient, url: str, text: str, max_tokens: int, **fields: Any) -> Answer:
    """One streamed chat completion with exactly `max_tokens` tokens."""
    body = {
        "model": "bench",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,  # one chunk per token even where a token decodes to no text yet
        **fields,
    }
    answer = Answer(time.perf_counter())
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _take(answer, json.loads(line[6:]))
    return answer


def _take(answer: Answer, chunk: dict[str, Any]) -> None:
    if chunk.get("usage"):
        answer.usage = chunk["usage"]
    for choice in chunk.get("choices", ()):
        logprobs = choice.get("logprobs")
        if logprobs and logprobs.get("content"):
            answer.times += [time.perf_counter()] * len(logprobs["content"])


def client() -> httpx2.AsyncClient:
    """Without time-outs or a limit on connections."""
    return httpx2.AsyncClient(timeout=None, limits=httpx2.Limits(max_connections=None))


async def ask_all(url: str, texts: list[str], max_tokens: int, **fields: Any) -> list[Answer]:
    """All at the same time."""
    async with client() as http:
        return list(await asyncio.gather(*(ask(http, url, text, max_tokens, **fields) for text in texts)))
