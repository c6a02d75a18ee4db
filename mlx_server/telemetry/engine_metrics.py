"""What an engine says of itself, as metrics. Asked for at each scrape; nothing is kept up to date in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mlx_server.core.messages import EngineInfo, EngineStats, Priority

_OF_PROCESS = {
    "vllm:prompt_tokens": ("prompt_tokens", "Prompt tokens of the requests that got a row, cached ones included."),
    "vllm:generation_tokens": ("generated_tokens", "Tokens generated."),
    "vllm:prefix_cache_queries": ("prompt_tokens", "Prompt tokens looked up in the prefix cache."),
    "vllm:prefix_cache_hits": ("cached_tokens", "Prompt tokens found in the prefix cache."),
    "vllm:num_preemptions": ("preemptions", "Times that a running request had to give its row up."),
    "mlx_serve_kv_evictions": ("evictions", "Cached KV blocks that were given to other requests."),
    "mlx_serve_kv_commits": ("commits", "Writes of full KV blocks from a row's tail into the pool."),
    "mlx_serve_engine_steps": ("steps", "Steps that were computed."),
    "mlx_serve_engine_failed_steps": ("failed_steps", "Steps that failed; their requests started again."),
}
"""Counters that begin at 0 in every process of the engine: name -> (field of `EngineStats`, meaning)."""

_OF_DAEMON = {
    "mlx_serve_engine_restarts": ("restarts", "Times that the engine's process had to be replaced."),
    "mlx_serve_resumed_requests": ("resumed", "Requests that went on in another process than they began in."),
}
"""Counters that outlive the engine's processes."""

_GAUGES = {
    "vllm:num_requests_running": ("running", "Requests that have a row."),
    "vllm:num_requests_waiting": ("waiting", "Requests that wait for a row."),
    "mlx_serve_memory_level": (
        "memory_level",
        "Shortage of memory that the engine was told: 0 normal, 1 warn, 2 critical.",
    ),
}

_LABELS = ("model_name",)


@dataclass(slots=True, frozen=True)
class EngineFigures:
    """What one scrape is told. is_up: whether the engine has a process that computes."""

    info: EngineInfo
    stats: EngineStats
    is_up: bool


class EngineMetrics(Collector):
    """A collector of the figures taken last. Owned by the daemon's event loop."""

    def __init__(self, model_name: str) -> None:
        self._model = [model_name]
        self._totals = _Totals()
        self._engine: EngineFigures | None = None

    def take(self, engine: EngineFigures | None) -> None:
        """Call before a scrape. None: there is no engine that could say."""
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """The families. Of an engine that is not there, only that."""
        up = self._engine is not None and self._engine.is_up
        yield self._gauge("mlx_serve_engine_up", "Whether the engine has a process that computes.", float(up))
        if self._engine is None:
            return
        info, stats = self._engine.info, self._engine.stats
        yield from self._counters(stats)
        for name, (field, meaning) in _GAUGES.items():
            yield self._gauge(name, meaning, getattr(stats, field))
        yield from self._pool(info, stats)
        yield self._gauges(
            "mlx_serve_device_memory_bytes",
            "MLX's allocator: in use, and the most since the process began.",
            "kind",
            {"active": stats.active_bytes, "peak": stats.peak_bytes},
        )
        yield self._gauges(
            "mlx_serve_kv_outside_pool_bytes",
            "K/V that is not in the pool: copies gathered for attention, and tails of rows.",
            "kind",
            {"gathered": stats.kept_kv_bytes, "tail": stats.tail_kv_bytes},
        )
        yield self._gauge("mlx_serve_model_weight_bytes", "Size of the weights.", info.weight_bytes)
        yield self._gauges(
            "mlx_serve_streams",
            "Requests that have not ended, by whether they are read or paused because nobody reads them.",
            "state",
            {"live": stats.streams - stats.paused_streams, "paused": stats.paused_streams},
        )

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        totals = self._totals.add(stats)
        for name, (field, meaning) in _OF_PROCESS.items():
            yield self._counter(name, meaning, totals[field])
        for name, (field, meaning) in _OF_DAEMON.items():
            yield self._counter(name, meaning, getattr(stats, field))

    def _pool(self, info: EngineInfo, stats: EngineStats) -> Iterator[Metric]:
        states = {"used": stats.blocks_used, "cached": stats.blocks_cached, "free": stats.blocks_free}
        blocks = sum(states.values())
        usage = stats.blocks_used / blocks if blocks else 0.0
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks that requests hold; 1 is all.", usage)
        yield self._gauges("mlx_serve_kv_blocks", "KV blocks of the pool.", "state", states)
        pool_bytes = blocks * info.block_size * info.kv_bytes_per_token
        yield self._gauge("mlx_serve_kv_pool_bytes", "Size of the KV pool.", pool_bytes)
        most = info.num_blocks * info.block_size * info.kv_bytes_per_token
        yield self._gauge("mlx_serve_kv_pool_max_bytes", "Most that the KV pool may grow to.", most)
        yield self._gauges(
            "mlx_serve_requests_running", "Requests that have a row.", "priority", _named(stats.running_by_priority)
        )
        yield self._gauges(
            "mlx_serve_requests_waiting",
            "Requests that wait for a row.",
            "priority",
            _named(stats.waiting_by_priority),
        )

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=_LABELS)
        family.add_metric(self._model, value)
        return family

    def _gauges(self, name: str, meaning: str, label: str, values: dict[str, int]) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=(*_LABELS, label))
        for what, value in values.items():
            family.add_metric([*self._model, what], value)
        return family

    def _counter(self, name: str, meaning: str, value: int) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=_LABELS)
        family.add_metric(self._model, value)
        return family


class _Totals:
    """Counters summed over the engine's processes, so that none ever falls.

    What a process counted between its last scrape and its end is not in the sum.
    """

    def __init__(self) -> None:
        fields = {field for field, _ in _OF_PROCESS.values()}
        self._before = dict.fromkeys(fields, 0)
        self._last = dict.fromkeys(fields, 0)
        self._process_number = 0

    def add(self, stats: EngineStats) -> dict[str, int]:
        """Field of `EngineStats` -> the total."""
        now = {field: int(getattr(stats, field)) for field in self._last}
        if stats.process_number != self._process_number:
            self._process_number = stats.process_number
            self._before = {field: before + self._last[field] for field, before in self._before.items()}
        self._last = now
        return {field: before + now[field] for field, before in self._before.items()}


def _named(by_priority: tuple[int, int, int]) -> dict[str, int]:
    return {priority.name.lower(): by_priority[priority] for priority in Priority}
