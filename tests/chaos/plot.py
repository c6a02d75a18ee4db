"""The timeline of a run as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from tests.chaos.report import DEATHS


def draw(result: dict[str, Any], path: Path) -> None:
    """Write a PNG: text received with the faults as marks, pauses, memory, descriptors."""
    figure, axes = plt.subplots(4, 1, figsize=(11, 11), sharex=True, height_ratios=(3, 2, 2, 2))
    _text(axes[0], result)
    _pauses(axes[1], result)
    _memory(axes[2], result)
    _descriptors(axes[3], result)
    axes[3].set_xlabel("s")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _text(axis: Axes, result: dict[str, Any]) -> None:
    pieces = result["pieces_per_second"]
    axis.plot(range(len(pieces)), pieces, linewidth=0.8, color="tab:blue")
    deaths = [fault["at_s"] for fault in result["fault_log"] if fault["kind"] in DEATHS]
    others = [fault["at_s"] for fault in result["fault_log"] if fault["kind"] not in DEATHS]
    top = max(pieces, default=1)
    axis.vlines(deaths, 0, top, color="tab:red", linewidth=0.6, label=f"engine killed or wedged ({len(deaths)})")
    axis.plot(others, [1.04 * top] * len(others), "|", color="tab:orange", label=f"other faults ({len(others)})")
    verdict = "no violation" if result["passed"] else f"{result['counts']['violations']} violations"
    title = f"{result['run']}, seed {result['seed']}: {result['counts'].get('answers', 0)} answers, {verdict}"
    axis.set(title=title, ylabel="pieces of text / s, streams", ylim=(0, 1.4 * top))
    axis.legend(loc="upper right", fontsize=8)


def _pauses(axis: Axes, result: dict[str, Any]) -> None:
    for kind in sorted({pause["kind"] for pause in result["pauses"]}):
        points = [(p["at_s"], s) for p in result["pauses"] if p["kind"] == kind for s in p["seconds"]]
        axis.plot([at for at, _ in points], [s for _, s in points], ".", markersize=4, label=kind)
    axis.set(ylabel="pause of each stream, s", ylim=(0, None))
    if result["pauses"]:
        axis.legend(loc="upper right", fontsize=8)


def _memory(axis: Axes, result: dict[str, Any]) -> None:
    samples = result["samples"]
    times = [sample["at_s"] for sample in samples]
    axis.plot(times, [sample["rss_mb"] for sample in samples], label="daemon")
    axis.plot(times, [sample["engine_rss_mb"] for sample in samples], linewidth=0.6, label="engine")
    axis.set(ylabel="resident memory, MB", ylim=(0, None))
    axis.legend(loc="lower right", fontsize=8)


def _descriptors(axis: Axes, result: dict[str, Any]) -> None:
    samples = result["samples"]
    times = [sample["at_s"] for sample in samples]
    for name, label in (("fds", "descriptors"), ("threads", "threads"), ("children", "processes under it")):
        axis.plot(times, [sample[name] for sample in samples], linewidth=0.8, label=label)
    quiet = result["quiet_points"]
    axis.plot([q["at_s"] for q in quiet], [q["fds"] for q in quiet], "kv", markersize=5, label="descriptors when quiet")
    axis.set(ylabel="of the daemon", ylim=(0, None))
    axis.legend(loc="upper right", fontsize=8)
