"""Logging: one line an event, for people or as JSON, and without what clients write."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from mlx_server.api.serving import ServingState
from mlx_server.telemetry.logs import setup_logging
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, chat

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


SECRET = "the launch code\nis 8642"


def json_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Fails where a line is none."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


async def test_a_request_in_json(client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", log_format="json")
    response = await client.post(URL, json=chat("hi", max_tokens=3))
    (line,) = json_lines(capsys)
    assert line["request_id"] == response.headers["x-request-id"]
    expected = {"message": "request", "level": "info", "method": "POST", "path": URL, "status": 200, "outcome": "ok"}
    assert expected.items() <= line.items()
    assert line["completion_tokens"] == 3
    assert 0 <= line["ttft_s"] <= line["total_s"]


async def test_an_exception_in_json_is_one_line(
    client: httpx.AsyncClient, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    setup_logging("info", log_format="json")
    engine.crash = ZeroDivisionError("a\nb")
    response = await client.post(URL, json=chat())
    assert response.status_code == 500
    failed, request = json_lines(capsys)
    assert failed["level"] == "error"
    assert failed["request_id"] == request["request_id"] == response.headers["x-request-id"]
    assert "ZeroDivisionError: a\nb" in failed["exception"]


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_what_clients_write_is_not_logged(
    client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str], log_format: Any
) -> None:
    setup_logging("debug", log_format=log_format)
    answer = (await client.post(URL, json=chat(SECRET))).json()["choices"][0]["message"]["content"]
    await client.post(URL, json=chat(SECRET, temperature=SECRET))
    err = capsys.readouterr().err
    assert err
    assert "launch code" not in err
    assert answer not in err


async def test_prompts_are_logged_when_asked_for_and_cut_off(
    client: httpx.AsyncClient, serving: ServingState, capsys: pytest.CaptureFixture[str]
) -> None:
    serving.settings = serving.settings.model_copy(update={"log_prompts": True})
    setup_logging("info", log_format="json")
    await client.post(URL, json=chat(SECRET + "x" * 100 + "y" * 3000, max_tokens=1))
    prompt, request = json_lines(capsys)
    assert prompt["message"] == "prompt"
    assert prompt["request_id"] == request["request_id"]
    assert json.dumps(SECRET)[1:-1] in prompt["prompt"]
    assert len(prompt["prompt"]) == 2000
    assert prompt["prompt_chars"] > 3000
    setup_logging("info")
    await client.post(URL, json=chat(SECRET))
    assert capsys.readouterr().err.count("\n") == 2
