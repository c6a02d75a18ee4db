"""Fuzz a daemon for some minutes, and write what came of it to fuzz.json.

python -m tests.fuzz --minutes 5 --out fuzz-results
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from tests.fuzz.daemon import Daemon, running
from tests.fuzz.fuzzer import Fuzzer

ROUND = 40
"""Requests of each kind between two looks at the clock."""


def main() -> None:
    """Parse the command line and run. The exit status is 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long random requests are sent")
    parser.add_argument("--out", type=Path, default=Path("fuzz-results"), help="folder for fuzz.json")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; the next one has the next")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with running() as daemon:
        report = run(daemon, args.minutes * 60, args.seed)
    broken = report["failures"] or not report["alive"] or report["log"]
    (args.out / "fuzz.json").write_text(json.dumps(report, indent=1) + "\n")
    console = Console()
    console.print_json(json.dumps(report))
    console.print(f"{'BROKEN' if broken else 'held'}: {report['cases']} requests, report in {args.out / 'fuzz.json'}")
    raise SystemExit(1 if broken else 0)


def run(daemon: Daemon, seconds: float, seed: int) -> dict[str, Any]:
    """Every boundary once, then random requests; the report. seed: of the first round."""
    started = time.monotonic()
    before = figures(daemon)
    fuzzer = Fuzzer(daemon.url)
    for operation in fuzzer.operations:
        fuzzer.boundaries(operation)
    rounds = 0
    while time.monotonic() - started < seconds and daemon.alive:
        for operation in fuzzer.operations:
            fuzzer.random(operation, ROUND if "chat" in operation.label else ROUND // 8, seed + rounds)
        rounds += 1
    if daemon.alive:
        fuzzer.check_idle()
    return {
        "seconds": round(time.monotonic() - started, 1),
        "rounds": rounds,
        "alive": daemon.alive,
        "log": daemon.written(),
        "before": before,
        "after": figures(daemon) if daemon.alive else None,
        **fuzzer.report.as_json(),
    }


def figures(daemon: Daemon) -> dict[str, int]:
    """Of the daemon's processes together. Resident memory in bytes."""
    parent = psutil.Process(daemon.process.pid)
    processes = [parent, *parent.children(recursive=True)]
    return {
        "processes": len(processes),
        "threads": sum(process.num_threads() for process in processes),
        "file_descriptors": sum(process.num_fds() for process in processes),
        "resident_bytes": sum(process.memory_info().rss for process in processes),
    }


if __name__ == "__main__":
    main()
