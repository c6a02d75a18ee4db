"""CPU time and wake-ups of a daemon that has a model and nothing to do, all its processes and threads."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.server import Daemon, ask, daemon
from tests.bench.usage import cpu_s, threads

SETTLE_S, WATCH_S = 5.0, 60.0


def _watch(running: Daemon) -> dict[str, Any]:
    pids = running.pids
    before = {part: threads(pid) for part, pid in pids.items()}
    before_cpu_s = {part: cpu_s(pid) for part, pid in pids.items()}
    started_s = time.perf_counter()
    time.sleep(WATCH_S)  # a measurement, not a test
    seconds = time.perf_counter() - started_s
    parts = {}
    for part, pid in pids.items():
        cpu = cpu_s(pid) - before_cpu_s[part]
        used = [now.since(before[part][tid]) for tid, now in threads(pid).items() if tid in before[part]]
        parts[part] = {
            "threads": len(used),
            "cpu_percent": 100 * cpu / seconds,
            "run_percent": 100 * sum(thread.run_s for thread in used) / seconds,
            "wakeups_s": sum(thread.wakeups for thread in used) / seconds,
            "preemptions_s": sum(thread.preemptions for thread in used) / seconds,
            "busy_threads": [asdict(thread) for thread in used if thread.wakeups or thread.preemptions],
        }
    names = ("cpu_percent", "run_percent", "wakeups_s", "preemptions_s")
    return {"seconds": seconds, "all": {key: sum(part[key] for part in parts.values()) for key in names}, **parts}


def run(out: Path, rounds: int = 1) -> dict[str, Any]:
    """The demo model, default settings, after one short answer. `all` is the worst of the rounds."""
    with daemon("demo") as running:
        asyncio.run(ask(running.url, "Hello!", 32))
        time.sleep(SETTLE_S)  # the answer's connection and timers are gone
        rows = [_watch(running) for _ in range(rounds)]
    return {"all": {key: max(row["all"][key] for row in rows) for key in rows[0]["all"]}, "rounds": rows}
