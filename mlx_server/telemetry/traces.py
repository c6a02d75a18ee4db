"""Traces of requests, through logfire (OpenTelemetry). Off unless asked for; numbers and names only, never text.

Where the spans go is the environment's business: `LOGFIRE_TOKEN` sends them to Logfire,
`OTEL_EXPORTER_OTLP_ENDPOINT` to any collector. Without either nothing leaves the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Attributes = dict[str, str | int | float | None]

_enabled = False


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
