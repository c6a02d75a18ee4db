"""Logging: the standard library's, to standard error, one line per event. Prompt text is never logged."""

from __future__ import annotations

import logging
import sys

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


def setup_logging(level: str, handler: logging.Handler | None = None) -> None:
    """Send this project's and uvicorn's records of at least `level` to `handler`. Idempotent.

    Without a handler they go to standard error, one plain line each.
    """
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S%z"))
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
