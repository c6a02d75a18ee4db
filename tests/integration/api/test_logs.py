"""Logging set-up."""

import logging
from collections.abc import Iterator

import pytest

from mlx_server.telemetry.logs import setup_logging

NAMES = ("mlx_server", "uvicorn", "uvicorn.error", "uvicorn.access", "httpx")


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(logger.level, logger.handlers, logger.propagate) for logger in loggers]
    yield
    for logger, (level, handlers, propagate) in zip(loggers, before, strict=True):
        logger.level, logger.handlers, logger.propagate = level, handlers, propagate


def test_one_line_to_stderr_at_the_level_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info")
    setup_logging("info")
    logger = logging.getLogger("mlx_server.api.request_log")
    logger.info("seen")
    logger.debug("not seen")
    logging.getLogger("uvicorn.access").error("not seen")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("INFO mlx_server.api.request_log: seen\n")
