"""Other HTTP work for a daemon, in every second window of time: `python -m tests.bench.noise URL`, until SIGTERM.

Models, health, and two chats that get a 400, in turn. It shares the machine with what it disturbs, so it does as little
as it can: prebuilt bytes, connections that stay open, and an answer is read only when its connection is next used.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from urllib.parse import urlsplit

RATE = 200.0
WINDOW_S = 1.5
CONNECTIONS = 20
"""In flight at most; at 200 requests a second an answer may take 100 ms before the rate suffers."""


def window_of(now_s: float) -> int:
    """Of `time.monotonic`, which all processes of a machine share. The odd windows are noisy."""
    return int(now_s / WINDOW_S)


@dataclass
class Noise:
    """requests_s: the rate that was served in noisy windows; wrong: answers with another status. Known at the end."""

    pid: int
    requests_s: float = 0.0
    wrong: int = 0


@contextmanager
def noise(url: str, cpus: set[int]) -> Iterator[Noise]:
    """Disturb while inside, for several windows. cpus: those it may run on; empty for any."""
    command = [sys.executable, "-m", "tests.bench.noise", url, *map(str, cpus)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    figures = Noise(process.pid)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield figures
    finally:
        process.terminate()
        figures.requests_s, figures.wrong = json.loads(process.communicate(timeout=30)[0])


def _requests(host: str) -> list[tuple[bytes, bytes]]:
    """Each request and the status it gets."""
    chat = {"model": "bench", "messages": [{"role": "user", "content": "Hello!"}]}
    wrong_field = json.dumps({**chat, "temperature": 9}).encode()
    return [
        (f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), b"200"),
        (_post(host, wrong_field), b"400"),
        (f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), b"200"),
        (_post(host, wrong_field[:-9]), b"400"),
    ]


def _post(host: str, body: bytes) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _read_status(connection: socket.socket) -> bytes:
    received = _more(connection)
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += _more(connection)
    length = re.search(rb"content-length: (\d+)", received[:end], re.IGNORECASE)
    assert length is not None
    while len(received) < end + 4 + int(length[1]):
        received += _more(connection)
    return received[9:12]


def _more(connection: socket.socket) -> bytes:
    received = connection.recv(65536)
    if not received:
        raise ConnectionError("the daemon closed a connection")
    return received


def _disturb(url: str) -> tuple[float, int]:
    """Until SIGTERM. Requests a second, the median of whole noisy windows; and the number of wrong statuses.

    When it is late it catches up within the window.
    """
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    host = urlsplit(url).netloc
    kinds = _requests(host)
    address, port = host.split(":")
    connections = [socket.create_connection((address, int(port)), timeout=30) for _ in range(CONNECTIONS)]
    expected: list[bytes | None] = [None] * CONNECTIONS
    print("ready", flush=True)
    sent, wrong, in_window = 0, 0, Counter[int]()
    while not stopped:
        window = window_of(time.monotonic())
        if window % 2 == 0:
            time.sleep(max(0.0, (window + 1) * WINDOW_S - time.monotonic()))
            continue
        place = sent % CONNECTIONS
        if (status := expected[place]) is not None:
            wrong += _read_status(connections[place]) != status
        request, expected[place] = kinds[sent % len(kinds)]
        connections[place].sendall(request)
        sent += 1
        in_window[window] += 1
        time.sleep(max(0.0, window * WINDOW_S + in_window[window] / RATE - time.monotonic()))
    whole = [in_window[window] for window in sorted(in_window)[1:-1]]
    return median(whole) / WINDOW_S, wrong


def _main(url: str, *cpus: str) -> None:
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus})
    print(json.dumps(_disturb(url)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
