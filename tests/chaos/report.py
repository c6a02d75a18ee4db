"""The figures of a run, for machines and for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.chaos.resources import Resources
from tests.chaos.run_state import Run

KILLS = ("kill",)
DEATHS = ("kill", "stop", "abort", "segv", "hang", "poison_abort")
MAX_NEAR_TIES = 5


def report(
    name: str, seconds: float, run: Run, resources: Resources, slope: dict[str, Any], stats: dict[str, Any]
) -> dict[str, Any]:
    """`passed` is false after any violation."""
    if run.counts["near ties"] > MAX_NEAR_TIES:
        run.violate(f"{run.counts['near ties']} near ties, more than {MAX_NEAR_TIES}")
    deaths = run.pauses()
    faults = Counter(fault.kind for fault in run.faults)
    kills = sum(faults[kind] for kind in KILLS)
    pauses = [second for pause in deaths if pause.kind in KILLS for second in pause.seconds]
    return {
        "run": name,
        "seed": run.seed,
        "seconds": seconds,
        "lasted_s": round(run.now_s(), 1),
        "passed": run.counts["violations"] == 0,
        "kills": kills,
        "other_faults": sum(faults.values()) - kills,
        "faults": dict(sorted(faults.items())),
        "counts": {kind: count for kind, count in sorted(run.counts.items()) if not kind.startswith("fault ")},
        "violations": run.violations,
        "pause_s": percentiles(pauses),
        "pauses": [asdict(pause) for pause in deaths],
        "daemon_rss": slope,
        "quiet_points": [asdict(quiet) for quiet in resources.quiet],
        "engine_stats": stats,
        "engines": resources.by_engine(),
        "fault_log": [asdict(fault) for fault in run.faults],
        "samples": [asdict(sample) for sample in resources.samples],
        "pieces_per_second": [run.pieces[second] for second in range(max(run.pieces, default=0) + 1)],
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Empty when there are none."""
    if not seconds:
        return {}
    points = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {"n": len(seconds)} | {
        name: round(float(np.percentile(seconds, share)), 3) for name, share in points.items()
    }


def show(result: dict[str, Any], console: Console) -> None:
    """A table on the terminal, and the violations under it."""
    table = Table(title=f"{result['run']}, seed {result['seed']}", show_header=False)
    table.add_row("seconds planned, lasted", f"{result['seconds']:g}, {result['lasted_s']:g}")
    table.add_row("engine kills", str(result["kills"]))
    table.add_row("other faults", str(result["other_faults"]))
    for kind, count in result["faults"].items():
        table.add_row(f"  {kind}", str(count))
    for kind, count in result["counts"].items():
        table.add_row(kind, str(count))
    for name, value in result["pause_s"].items():
        table.add_row(f"pause after a kill, {name}", f"{value:g}" + ("" if name == "n" else " s"))
    if result["daemon_rss"]:
        about = result["daemon_rss"]
        figures = f"{about['mb_per_minute']:+.3f} ± {about['standard_error']:.3f} MB/min"
        table.add_row("daemon's memory", f"{figures} (bound {about['bound_mb_per_minute']:.2f})")
    for name in ("rss_mb", "fds", "threads", "children", "temp_files"):
        table.add_row(f"{name} at quiet points", ", ".join(f"{quiet[name]:.0f}" for quiet in result["quiet_points"]))
    for name in ("restarts", "resumed", "preemptions", "failed_steps"):
        table.add_row(f"engine: {name}", str(result["engine_stats"].get(name)))
    console.print(table)
    for violation in result["violations"][:20]:
        console.print(f"[red]violation[/] at {violation['at_s']} s: {violation['problem']}", highlight=False)
    console.print("[green]passed[/]" if result["passed"] else "[red]failed[/]")
