"""What running processes have used so far, as the operating system counts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil


def cpu_s(pid: int) -> float:
    """Seconds of CPU time of a process, user and system, all its threads; the kernel counts in hundredths."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MiB, shared pages included."""
    return float(psutil.Process(pid).memory_info().rss) / 2**20


@dataclass(frozen=True, slots=True)
class ThreadUsage:
    """Since a thread began. run_s: CPU seconds, to the nanosecond."""

    name: str
    wakeups: int
    preemptions: int
    run_s: float

    def since(self, before: ThreadUsage) -> ThreadUsage:
        """What has been added."""
        return ThreadUsage(
            self.name,
            self.wakeups - before.wakeups,
            self.preemptions - before.preemptions,
            self.run_s - before.run_s,
        )


def threads(pid: int) -> dict[int, ThreadUsage]:
    """By thread id, on Linux; elsewhere the whole process as one thread, whose preemptions count as wake-ups.

    A voluntary context switch is a thread that goes to sleep, so there is one for each time it was woken.
    """
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.exists():
        process = psutil.Process(pid)
        switches = process.num_ctx_switches()
        return {pid: ThreadUsage("all", switches.voluntary, switches.involuntary, cpu_s(pid))}
    return {int(task.name): _thread(task) for task in tasks.iterdir()}


def _thread(task: Path) -> ThreadUsage:
    status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
    run_ns = int((task / "schedstat").read_text().split()[0])
    return ThreadUsage(
        status["Name"], int(status["voluntary_ctxt_switches"]), int(status["nonvoluntary_ctxt_switches"]), run_ns / 1e9
    )
