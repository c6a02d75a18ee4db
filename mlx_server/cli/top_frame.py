"""One frame of `mlx-serve top`: the facts as lines of text that fit on the screen."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import accumulate

from rich.console import ConsoleDimensions, ConsoleRenderable, Group
from rich.table import Table
from rich.text import Text

from mlx_server.api.live.facts import Facts, Point, RequestFacts
from mlx_server.api.live.histogram import HistogramFacts
from mlx_server.api.live.recent_errors import RecentError
from mlx_server.cli.printable import printable
from mlx_server.cli.ps import duration
from mlx_server.cli.serve import gigabytes

_LEVEL_STYLES = {"normal": "green", "warn": "yellow", "critical": "bold red"}
_SPARKS = "▁▂▃▄▅▆▇█"
_LABEL = 9
_GB = 1 << 30
_BAR = 16
_SPARK = 24
_MOST_ERRORS = 4
_ID = 12


def frame(facts: Facts, points: Sequence[Point], url: str, size: ConsoleDimensions) -> ConsoleRenderable:
    """points: the history, oldest first. Never more lines or columns than `size`."""
    errors = facts.errors[-_MOST_ERRORS:][::-1]
    head = [_title(facts, url), *_figures(facts, points, size.width)]
    errors_height = len(errors) + 1 if errors else 0
    room = size.height - len(head) - errors_height - 4  # blank line, heading, column names, last line
    lines: list[ConsoleRenderable] = [*head, Text()]
    lines += _requests(facts, max(room, 1))
    if errors:
        lines += [_heading("recent errors"), *(_error(error) for error in errors)]
    for line in lines:
        if isinstance(line, Text):
            line.no_wrap = True
            line.truncate(size.width, overflow="ellipsis")
    return Group(*lines)


def _title(facts: Facts, url: str) -> Text:
    model = printable(facts.model.name) if facts.model else "no model yet"
    title = Text.assemble(("mlx-serve ", "bold"), facts.version, "  ", (model, "bold"), "  ", facts.status)
    if facts.reason:
        title.append(f" ({facts.reason})", "yellow")
    return title.append(f"  up {duration(facts.uptime_s)}  {url}", "dim")


def _figures(facts: Facts, points: Sequence[Point], width: int) -> list[Text]:
    return [
        _memory(facts),
        _kv_pool(facts),
        _speed(facts, points, width),
        _prefix(facts),
        _queues(facts),
        _latencies(facts),
    ]


def _line(label: str, *parts: str | tuple[str, str]) -> Text:
    return Text.assemble((label.ljust(_LABEL), "dim"), *parts)


def _memory(facts: Facts) -> Text:
    memory = facts.memory
    if memory is None:
        return _line("memory", "not known yet")
    style = _LEVEL_STYLES.get(memory.level, "")
    bar = (_bar(memory.total_bytes, (memory.used_bytes, "█")), style)
    used = f" {memory.used_bytes / _GB:.1f}/{memory.total_bytes / _GB:.1f} GB "
    rest = f"  engine {gigabytes(memory.engine_bytes)}"
    if memory.swap_bytes:
        rest += f"  swap {gigabytes(memory.swap_bytes)}"
    return _line("memory", bar, used, (memory.level, style), rest)


def _kv_pool(facts: Facts) -> Text:
    kv = facts.kv
    if kv is None:
        return _line("KV pool", "none yet")
    bar = _bar(kv.used_bytes + kv.cached_bytes + kv.free_bytes, (kv.used_bytes, "█"), (kv.cached_bytes, "▒"))
    parts = (("█ used", kv.used_bytes), ("▒ cached", kv.cached_bytes), ("· free", kv.free_bytes))
    return _line("KV pool", (bar, "cyan"), " ", "  ".join(f"{name} {gigabytes(count)}" for name, count in parts))


def _speed(facts: Facts, points: Sequence[Point], width: int) -> Text:
    rates = facts.rates
    figures = f" {_number(rates.generated)} generated  {_number(rates.prompt)} prompt"
    room = max(width - _LABEL - len(figures), 1)
    spark = sparkline([point.generated for point in points][-room:])
    return _line("tok/s", (spark[-_SPARK:].rjust(min(room, _SPARK)), "green"), figures)


def _prefix(facts: Facts) -> Text:
    recent, total = facts.rates.hit_rate, facts.rates.total_hit_rate
    evicted = "" if facts.engine is None else f"  evicted {facts.engine.evictions}"
    return _line("reused", f"{_share(recent)} of prompt tokens in the last minute, {_share(total)} in all{evicted}")


def _queues(facts: Facts) -> Text:
    stats = facts.engine
    queues = "  ".join(f"{queue.priority} {queue.starting}+{queue.decoding}" for queue in facts.queues)
    counts = "" if stats is None else f"{stats.running} running, {stats.waiting} waiting  "
    trouble = "" if stats is None else f"  preempted {stats.preemptions}"
    return _line("queues", counts, (queues, "cyan"), trouble)


def _latencies(facts: Facts) -> Text:
    parts = []
    for name, histogram in (("TTFT", facts.ttft), ("ITL", facts.itl)):
        parts.append(f"{name} p50 {_bound(histogram, 0.5)}  p99 {_bound(histogram, 0.99)}")
    return _line("latency", "    ".join(parts))


def _requests(facts: Facts, room: int) -> list[ConsoleRenderable]:
    """The newest where not all fit. At most `room` rows under the heading and the column names."""
    if not facts.requests:
        hidden = f"; {facts.hidden_requests} of other API keys" if facts.hidden_requests else ""
        return [_heading(f"no live requests{hidden}")]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("request", no_wrap=True)
    for name in ("key", "priority", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("prompt", "cached", "out", "tok/s", "age"):
        table.add_column(name, no_wrap=True, justify="right")
    for request in facts.requests[-room:]:
        table.add_row(*_cells(request))
    left_out = len(facts.requests) - room
    more = f", the newest {room} shown" if left_out > 0 else ""
    hidden = f", {facts.hidden_requests} of other API keys" if facts.hidden_requests else ""
    return [_heading(f"{len(facts.requests)} live requests{more}{hidden}"), table]


def _cells(request: RequestFacts) -> list[str | Text]:
    return [
        Text(printable(request.id)[-_ID:]),
        request.key_id,
        request.priority,
        request.state,
        f"{request.prompt_tokens:,}",
        f"{request.cached_tokens:,}",
        f"{request.generated_tokens:,}",
        _number(request.tokens_per_s),
        f"{request.age_s:.1f} s" if request.age_s < 100 else f"{request.age_s:,.0f} s",
    ]


def _error(error: RecentError) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(error.time_s))
    text = f"{at}  {error.status} {error.code}  {error.method} {error.path}  {error.request_id[-_ID:]}"
    return Text(printable(text), style="red")


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _bar(total: int, *parts: tuple[int, str]) -> str:
    """`_BAR` columns; each part to the nearest column of its end."""
    filled, end, bar = 0, 0, ""
    for count, mark in parts:
        filled += count
        now = round(_BAR * min(filled / total, 1)) if total else 0
        bar += mark * (now - end)
        end = now
    return bar.ljust(_BAR, "·")


def sparkline(values: Sequence[float | None]) -> str:
    """One column each, the largest as high as it gets; a blank where the value is not known."""
    highest = max((value for value in values if value is not None), default=0.0)
    columns = []
    for value in values:
        if value is None:
            columns.append(" ")
        else:
            columns.append(_SPARKS[round(value / highest * (len(_SPARKS) - 1))] if highest > 0 else _SPARKS[0])
    return "".join(columns)


def _bound(histogram: HistogramFacts, share: float) -> str:
    """The end of the bucket in which that share of the observations is reached."""
    total = sum(histogram.counts)
    if not total:
        return "-"
    rank = math.ceil(share * total)
    reached = next(i for i, count in enumerate(accumulate(histogram.counts)) if count >= rank)
    if reached == len(histogram.bounds_s):
        return f"> {_seconds(histogram.bounds_s[-1])}"
    return f"< {_seconds(histogram.bounds_s[reached])}"


def _seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
