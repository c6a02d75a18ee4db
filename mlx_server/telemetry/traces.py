"""Traces of requests, through logfire (OpenTelemetry). Off unless asked for; numbers and names only, never text.

Where the spans go is the environment's business: `LOGFIRE_TOKEN` sends them to Logfire,
`OTEL_EXPORTER_OTLP_ENDPOINT` to any collector. Without either nothing leaves the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Attributes = dict[str, str | int | float | None]

_enabled = False


@dataclass(slots=True, frozen=True)
class Phase:
    """A part of a request that is over. start_s, end_s: of `time.perf_counter`."""

    name: str
    start_s: float
    end_s: float
    attributes: Attributes = field(default_factory=dict)


def setup_tracing(enabled: bool) -> None:
    """Call once, before the first request. Importing logfire takes a while, so only who traces pays for it."""
    global _enabled
    _enabled = enabled
    if enabled:
        import logfire

        logfire.configure(service_name="mlx-serve", send_to_logfire="if-token-present", console=False)


@contextmanager
def request_span(method: str, path: str) -> Iterator[Callable[[Attributes], None]]:
    """A span around one request. Yields what takes its figures when they are known."""
    if not _enabled:
        yield lambda attributes: None
        return
    import logfire

    with logfire.span("{method} {path}", method=method, path=path, _span_name="request") as span:

        def note(attributes: Attributes) -> None:
            span.set_attributes({key: value for key, value in attributes.items() if value is not None})

        yield note


def note_phases(phases: Iterable[Phase]) -> None:
    """A child of the current span for each phase, at the time when it was. Call before that span ends."""
    if not _enabled:
        return
    from opentelemetry import trace

    tracer = trace.get_tracer("mlx_server")
    epoch_ns = time.time_ns() - time.perf_counter_ns()
    for phase in phases:
        known = {key: value for key, value in phase.attributes.items() if value is not None}
        span = tracer.start_span(phase.name, start_time=epoch_ns + round(phase.start_s * 1e9), attributes=known)
        span.end(epoch_ns + round(phase.end_s * 1e9))
