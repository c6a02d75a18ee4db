"""From the start of `mlx-serve serve` to a port that accepts, and to a model that answers."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.server import serve_command

LIMIT_S = 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _accepts(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def _is_ready(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"GET /ready HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        return b" 200 " in connection.recv(65536).partition(b"\r\n")[0]


def _wait(process: subprocess.Popen[bytes], condition: Callable[[], bool], every_s: float) -> float:
    """When the condition holds, on `time.perf_counter`."""
    give_up_s = time.perf_counter() + LIMIT_S
    while process.poll() is None and time.perf_counter() < give_up_s:
        if condition():
            return time.perf_counter()
        time.sleep(every_s)  # a measurement, not a test
    raise RuntimeError(f"the daemon ended, or was not ready after {LIMIT_S:.0f} s")


def _start(mode: str) -> dict[str, float]:
    port = _free_port()
    started_s = time.perf_counter()
    process = subprocess.Popen(
        serve_command("demo", "--port", str(port), "--engine", mode),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        listening_s = _wait(process, lambda: _accepts(port), 0.005) - started_s
        return {"listening_s": listening_s, "ready_s": _wait(process, lambda: _is_ready(port), 0.02) - started_s}
    finally:
        process.terminate()
        process.wait(timeout=30)


def run(out: Path, rounds: int = 5) -> dict[str, Any]:
    """The demo model, files in the page cache: the first start warms them."""
    _start("process")
    rows = [{mode: _start(mode) for mode in ("process", "inprocess")} for _ in range(rounds)]
    return {
        "median": {mode: {key: median(row[mode][key] for row in rows) for key in rows[0][mode]} for mode in rows[0]},
        "rounds": rows,
    }
