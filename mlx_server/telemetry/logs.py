"""Logging: the standard library's, to standard error, one line per event; no prompts unless `log_prompts` is set."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

_FIELDS = "mlx_serve_fields"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_NOISY = (
    "httpx",
    "httpcore",
    "httpx2",
    "httpcore2",
    "urllib3",
    "filelock",
    "huggingface_hub",
    "transformers",
    "asyncio",
)


LogFormat = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields that came with `with_fields`."""

    def format(self, record: logging.LogRecord) -> str:
        about: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        about |= getattr(record, _FIELDS, {})
        if record.exc_info:
            about["exception"] = self.formatException(record.exc_info)
        return json.dumps(about, default=str)


def with_fields(**fields: object) -> dict[str, dict[str, object]]:
    """The `extra` of a log call. `message` takes the place of the line's text in JSON."""
    return {_FIELDS: fields}


def setup_logging(level: str, handler: logging.Handler | None = None, log_format: LogFormat = "text") -> None:
    """Send this project's and uvicorn's records of at least `level` to `handler`. Idempotent.

    Without a handler they go to standard error, one line each.
    """
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        plain = logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S%z")
        handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    threshold = getattr(logging, level.upper())
    for name in ("mlx_server", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(threshold)
    # uvicorn says at info what the daemon says itself, and its access log repeats the request line.
    logging.getLogger("uvicorn.error").setLevel(max(threshold, logging.WARNING))
    logging.getLogger("uvicorn.access").setLevel(logging.CRITICAL)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
