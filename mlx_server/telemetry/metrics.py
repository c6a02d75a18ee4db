"""Prometheus metrics of the daemon: what it observes of its requests, and what its engine says at a scrape.

Names that begin with `vllm:` mean what they mean in vLLM, so that dashboards made for it work here. Labels are few
and bounded: no request, key, client or unknown path is ever one.
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.exposition import ALLOWUTF8

from mlx_server import __version__
from mlx_server.core.messages import FinishReason
from mlx_server.telemetry.engine_metrics import EngineFigures, EngineMetrics

OTHER = "other"
"""Label of a method or a path that the daemon does not know."""

# The bounds are vLLM's, so that quantiles of both can be compared; the finest are ours, for small models.
_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_INTER_TOKEN_S = (
    0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST_S = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

_OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS_VERSION = "1.0.0"
_METHODS = frozenset(http.HTTPMethod)


class Metrics:
    """A registry of its own. Owned by the daemon's event loop.

    model_name: label of everything that concerns the model. clock: seconds, that of `RequestRecord.started_s`.
    """

    def __init__(self, model_name: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._registry = CollectorRegistry()
        self._engine = EngineMetrics(model_name)
        self._registry.register(self._engine)
        self._model = model_name
        self.first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From the arrival of a request to its first token.", _TTFT_S
        )
        self.inter_token = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two deliveries of tokens to a request.", _INTER_TOKEN_S
        )
        self.whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "From the arrival of a request to its last token.", _REQUEST_S
        )
        self.queue = self._histogram("vllm:request_queue_time_seconds", "Until a request got a row.", _REQUEST_S)
        self.prompt_tokens = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.generated_tokens = self._histogram(
            "vllm:request_generation_tokens", "Tokens generated for a request.", _TOKENS
        )
        ended = Counter(
            "vllm:request_success",
            "Requests that have ended.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self.ended = {reason: ended.labels(model_name, reason.value) for reason in FinishReason}
        self._http = Counter(
            "mlx_serve_http_requests",
            "Answers by method, route and class of status.",
            ["method", "path", "status"],
            registry=self._registry,
        )
        build = Gauge("mlx_serve_build_info", "The version; always 1.", ["version"], registry=self._registry)
        build.labels(__version__).set(1)
        started = Gauge(
            "mlx_serve_start_time_seconds", "When the daemon began, in seconds since 1970.", registry=self._registry
        )
        started.set_to_current_time()

    def choice(self, arrived_s: float, prompt_tokens: int) -> ChoiceMetrics:
        """Begin to observe one choice. arrived_s: when its request arrived, on `clock`."""
        return ChoiceMetrics(self, arrived_s, prompt_tokens)

    def note_answer(self, method: str, route: str | None, status: int) -> None:
        """An HTTP request has been answered. route: the template of its path; None for an unknown one."""
        known = method if method in _METHODS else OTHER
        self._http.labels(known, route or OTHER, f"{status // 100}xx").inc()

    def render(self, engine: EngineFigures | None, accept: str) -> tuple[bytes, str]:
        """Everything, and its media type: OpenMetrics where `accept` asks for it, else Prometheus' text format.

        engine: None where there is none that could say.
        """
        self._engine.take(engine)
        if not _wants_openmetrics(accept):
            return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4
        # Our names need no escaping, but any other way turns the colon of samples (not of their types) into '_':
        # https://github.com/prometheus/client_python/issues/1177. `choose_encoder` will do once that is closed.
        body: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            self._registry, escaping=ALLOWUTF8, version=_OPENMETRICS_VERSION
        )
        return body, f"{_OPENMETRICS}; version={_OPENMETRICS_VERSION}; charset=utf-8"

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(name, meaning, ["model_name"], registry=self._registry, buckets=buckets)
        return family.labels(self._model)


class ChoiceMetrics:
    """One choice from its submission to its end. Owned by its generator."""

    __slots__ = ("_arrived_s", "_generated", "_last_s", "_metrics", "_prompt_tokens")

    def __init__(self, metrics: Metrics, arrived_s: float, prompt_tokens: int) -> None:
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._prompt_tokens = prompt_tokens
        self._generated = 0
        self._last_s: float | None = None

    def note(self, generated: int, queue_s: float) -> None:
        """Something has come. generated: tokens so far; when they are no more than before, nothing is observed."""
        if generated <= self._generated:
            return
        self._generated = generated
        now, metrics = self._metrics.clock(), self._metrics
        if self._last_s is None:
            metrics.first_token.observe(now - self._arrived_s)
            metrics.queue.observe(queue_s)
        else:
            metrics.inter_token.observe(now - self._last_s)
        self._last_s = now

    def end(self, reason: FinishReason) -> None:
        """Call once. Durations and sizes are those of complete answers alone."""
        metrics = self._metrics
        metrics.ended[reason].inc()
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            metrics.whole.observe(metrics.clock() - self._arrived_s)
            metrics.prompt_tokens.observe(self._prompt_tokens)
            metrics.generated_tokens.observe(self._generated)


def _wants_openmetrics(accept: str) -> bool:
    return any(part.partition(";")[0].strip().lower() == _OPENMETRICS for part in accept.split(","))
