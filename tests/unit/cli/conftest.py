import logging

import pytest


@pytest.fixture(autouse=True)
def _logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands set logging up for their whole process, which here is that of the tests."""
    for name in ("mlx_server", "uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "level", logging.NOTSET)
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "propagate", True)
