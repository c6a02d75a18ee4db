"""Starts and ends a daemon under test, and knows it by its process id and start time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.http_client import get_json
from tests.chaos.mailbox import FOLDER_VARIABLE

READY_S = 120
END_S = 30


@dataclass(slots=True, frozen=True)
class DaemonProcess:
    """url: without `/v1`. started_s: when the kernel says that it started. mailbox, temp: its private folders."""

    url: str
    process: asyncio.subprocess.Process
    started_s: float
    mailbox: Path
    temp: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def has_restarted(self) -> bool:
        """Whether it is gone, or another process has its id."""
        if self.process.returncode is not None:
            return True
        try:
            return psutil.Process(self.pid).create_time() != self.started_s
        except psutil.NoSuchProcess:
            return True

    def jump_clock(self) -> None:
        self.process.send_signal(signal.SIGUSR1)

    async def stats(self) -> dict[str, Any]:
        """Counters of the engine; empty while it is not there, or the daemon is gone."""
        try:
            _, about = await get_json(self.url, "/health")
        except (OSError, EOFError):
            return {}
        stats: dict[str, Any] = about.get("stats", {})
        return stats

    async def engine_pid(self) -> int:
        """Process id of the engine; 0 while it is dead, when the daemon still shows its last counters."""
        pid = int((await self.stats()).get("pid", 0))
        try:
            return pid if pid and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else 0
        except psutil.NoSuchProcess:
            return 0

    async def end(self) -> int:
        """SIGTERM; the exit status. Raises `TimeoutError` after `END_S`, and kills it."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(END_S):
                return await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise


@asynccontextmanager
async def daemon_process(out: Path, name: str, settings: dict[str, Any], faulty: bool) -> AsyncIterator[DaemonProcess]:
    """A daemon that answers; ended on leaving if it is still there. Its log is `out/NAME.log`."""
    mailbox, temp = out / f"{name}-mailbox", out / f"{name}-temp"
    for folder in (mailbox, temp):
        folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temp.resolve()), "OPENBLAS_NUM_THREADS": "1"}
    environment.pop(FOLDER_VARIABLE, None)
    if faulty:
        environment[FOLDER_VARIABLE] = str(mailbox.resolve())
    command = (sys.executable, "-m", "tests.chaos.daemon", json.dumps({"model": "demo", "port": 0} | settings))
    with (out / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment
        )
    try:
        url = await _url(process, out / f"{name}.log")
        yield DaemonProcess(url, process, psutil.Process(process.pid).create_time(), mailbox, temp)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _url(process: asyncio.subprocess.Process, log: Path) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(READY_S):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"the daemon ended before it was ready; see {log}")
    return line.decode().strip()
