"""One picture of whatever results are in the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes


def draw(out: Path) -> Path:
    """Write `out/benchmarks.png`; a benchmark that was not run leaves its panel out."""
    results = {
        name: json.loads((out / f"{name}.json").read_text()) for name in PANELS if (out / f"{name}.json").exists()
    }
    shown = [name for name in PANELS if name in results]
    path = out / "benchmarks.png"
    if not shown:
        return path
    columns = 2 if len(shown) > 1 else 1
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6.2 * columns, 3.7 * rows), squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, shown, strict=False):
        PANELS[name](axis, results[name])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return path


def _decode(axis: Axes, result: dict[str, Any]) -> None:
    rounds = range(1, len(result["rounds"]) + 1)
    axis.plot(rounds, [r["dense_tok_s"] for r in result["rounds"]], "o-", label="mlx-lm dense loop, bare")
    axis.plot(rounds, [r["http_tok_s"] for r in result["rounds"]], "s-", label="mlx-serve over HTTP")
    axis.set(title=f"Decode, {result['streams']} streams (median ratio {result['median']['ratio']:.2f})")
    axis.set(xlabel="round", ylabel="tokens / s", ylim=(0, None), xticks=list(rounds))
    axis.legend()


def _throughput(axis: Axes, result: dict[str, Any]) -> None:
    sizes = [str(int(r["concurrent"])) for r in result["rows"]]
    places = range(len(sizes))
    axis.bar([p - 0.2 for p in places], [r["dense_tok_s"] for r in result["rows"]], 0.4, label="mlx-lm dense loop")
    axis.bar([p + 0.2 for p in places], [r["engine_tok_s"] for r in result["rows"]], 0.4, label="mlx-serve engine")
    axis.set(title="Throughput, prefill included", xlabel="concurrent requests", ylabel="tokens / s")
    axis.set_xticks(list(places), sizes)
    axis.legend()


def _ttft(axis: Axes, result: dict[str, Any]) -> None:
    median = result["median"]
    names = {
        "cold_s": "cold 1k",
        "repeat_s": "exact repeat",
        "suffix_cold_s": "suffix alone",
        "shared_s": "1k shared + suffix",
    }
    bars = axis.bar(list(names.values()), [median[key] * 1e3 for key in names])
    axis.bar_label(bars, fmt="%.0f")
    axis.set(title="Time to first token", ylabel="ms")


def _stall(axis: Axes, result: dict[str, Any]) -> None:
    row = result["rounds"][-1]
    times = [t for t in row["token_times_s"] if -1.5 < t < row["admitted_s"] + 1.5]
    gaps = [(b - a) * 1e3 for a, b in pairwise(times)]
    axis.plot(times[1:], gaps, ".", markersize=3)
    axis.axvspan(0, row["admitted_s"], alpha=0.15, label="6k-token prompt admitted")
    axis.axhline(row["limit_s"] * 1e3, color="tab:red", linewidth=1, label="max(10 x median gap, 300 ms)")
    axis.set(title="Gaps of a running stream", xlabel="s", ylabel="ms", ylim=(0, None))
    axis.legend(loc="upper right")


def _memory(axis: Axes, result: dict[str, Any]) -> None:
    names = ["live K/V", "held, prefill", "held, decode"]
    values = [result["live_mb"], result["held_mb"]["prefill"], result["held_mb"]["decode"]]
    bars = axis.bar(names, values)
    axis.bar_label(bars, fmt="%.0f")
    axis.axhline(1.3 * result["live_mb"], color="tab:red", linewidth=1, label="1.3 x live")
    axis.set(title="KV memory, 1 x 16k + 15 x 128 tokens", ylabel="MB")
    axis.legend()


def _claims(axis: Axes, result: dict[str, Any]) -> None:
    rows = [row for row in result["rows"] if row["unit"] == "x"]
    places = range(len(rows))
    axis.barh([p + 0.2 for p in places], [row["claimed"] for row in rows], 0.4, label="claimed elsewhere")
    axis.barh([p - 0.2 for p in places], [row["measured"] for row in rows], 0.4, label="measured here")
    axis.set_yticks(list(places), [row["name"] for row in rows], fontsize=7)
    axis.set(title="Headline ratios", xlabel="times better")
    axis.legend()


def _isolation(axis: Axes, result: dict[str, Any]) -> None:
    modes = {mode: [ratio for row in result["rounds"] for ratio in row[mode]["ratios"]] for mode in result["median"]}
    for mode, ratios in modes.items():
        label = f"{mode} (median {result['median'][mode]['ratio']:.2f})"
        axis.plot(range(1, len(ratios) + 1), ratios, ".", label=label)
    axis.axhline(0.95, color="tab:red", linewidth=1, label="0.95")
    axis.set(title=f"Decode beside {result['asked_requests_s']:.0f} other requests a second, of quiet")
    axis.set(xlabel="noisy window", ylabel="ratio", ylim=(0, None))
    axis.legend(loc="lower right")


def _boundary(axis: Axes, result: dict[str, Any]) -> None:
    rounds = range(1, len(result["rounds"]) + 1)
    for mode, marker in (("process", "o"), ("inprocess", "s")):
        axis.plot(rounds, [r[mode]["tok_s"] for r in result["rounds"]], f"{marker}-", label=mode)
    axis.set(title=f"Decode, {result['streams']} streams (median ratio {result['median']['tok_s_ratio']:.2f})")
    axis.set(xlabel="round", ylabel="tokens / s", ylim=(0, None), xticks=list(rounds))
    axis.legend(loc="lower right")


def _restart(axis: Axes, result: dict[str, Any]) -> None:
    rounds = list(range(1, len(result["rounds"]) + 1))
    names = {
        "first_token_s": "first token of any",
        "pause_median_s": "median pause",
        "pause_longest_s": "longest pause",
    }
    for place, (key, label) in enumerate(names.items()):
        values = [row[key] for row in result["rounds"]]
        axis.bar([r + 0.25 * (place - 1) for r in rounds], values, 0.25, label=label)
    axis.set(title=f"kill -9 of the engine under {result['streams']} streams", xlabel="kill", ylabel="s", xticks=rounds)
    axis.margins(y=0.6)
    axis.legend(loc="upper left")


def _startup(axis: Axes, result: dict[str, Any]) -> None:
    median = result["median"]
    places = range(len(median))
    for place, key in ((-0.2, "listening_s"), (0.2, "ready_s")):
        bars = axis.bar([p + place for p in places], [row[key] for row in median.values()], 0.4, label=key[:-2])
        axis.bar_label(bars, fmt="%.2f")
    axis.axhline(2.0, color="tab:red", linewidth=1, label="2 s to a listening port")
    axis.set(title="Start of the daemon", ylabel="s")
    axis.set_xticks(list(places), list(median))
    axis.margins(y=0.6)
    axis.legend(loc="upper left")


def _pressure(axis: Axes, result: dict[str, Any]) -> None:
    row = result["rounds"][0]
    at_s = [sample["at_s"] for sample in row["samples"]]
    for label, key, scale in (
        ("footprint of the engine", "footprint_bytes", 1.0),
        ("KV pool", "pool_blocks", row["block_bytes"]),
        ("KV in use", "used_blocks", row["block_bytes"]),
    ):
        axis.plot(at_s, [sample[key] * scale / 2**20 for sample in row["samples"]], label=label)
    colours = {1: "#f0c35a", 2: "#e06666"}
    ends = [change["at_s"] for change in row["changes"][1:]] + [at_s[-1]]
    for change, end_s in zip(row["changes"], ends, strict=True):
        if change["level"]:
            axis.axvspan(change["at_s"], end_s, color=colours[change["level"]], alpha=0.3)
    axis.set_ylim(bottom=0)
    axis.set(title="Memory pressure: warn, then critical", xlabel="s", ylabel="MB")
    axis.legend(fontsize=8)


PANELS: dict[str, Callable[[Axes, dict[str, Any]], None]] = {
    "decode": _decode,
    "throughput": _throughput,
    "ttft": _ttft,
    "stall": _stall,
    "memory": _memory,
    "claims": _claims,
    "isolation": _isolation,
    "boundary": _boundary,
    "restart": _restart,
    "startup": _startup,
    "pressure": _pressure,
}
