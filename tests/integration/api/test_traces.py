"""A traced request leaves one span with its figures and without its text, and one for each of its phases."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from mlx_server.telemetry import traces
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, chat

SECRET = "the launch code is 8642"


@pytest.fixture
def traced(capfire: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(traces, "_enabled", True)
    return capfire.exporter


def by_name(exporter: Any) -> dict[str, dict[str, Any]]:
    """Fails where two have the same name."""
    complete = [span for span in exporter.exported_spans if span.attributes.get("logfire.span_type") != "pending_span"]
    found = {span.name: span for span in complete}
    assert len(found) == len(complete)
    return {
        name: {"start": span.start_time, "end": span.end_time, "attributes": dict(span.attributes), "span": span}
        for name, span in found.items()
    }


async def test_one_span_for_a_request_without_tokens(traced: Any, client: httpx2.AsyncClient) -> None:
    await client.get("/v1/models")
    assert list(by_name(traced)) == ["request"]
    attributes = by_name(traced)["request"]["attributes"]
    assert attributes["status"] == 200
    assert attributes["path"] == "/v1/models"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_phases_of_an_answer(
    traced: Any, client: httpx2.AsyncClient, engine: ScriptedEngine, stream: bool
) -> None:
    engine.cached_tokens = 3
    response = await client.post(URL, json=chat("hello there", stream=stream))
    assert response.status_code == 200
    found = by_name(traced)
    phases = ["queue", "prefill", "decode", *(["stream"] if stream else [])]
    assert sorted(found) == sorted([*phases, "request"])
    request = found["request"]
    for name in phases:
        assert found[name]["span"].parent.span_id == request["span"].context.span_id
        assert found[name]["start"] <= found[name]["end"]
    assert found["queue"]["end"] == found["prefill"]["start"]
    assert found["prefill"]["end"] == found["decode"]["start"]
    assert found["prefill"]["attributes"]["cached_tokens"] == 3
    assert found["prefill"]["attributes"]["prompt_tokens"] == request["attributes"]["prompt_tokens"] > 0
    assert found["decode"]["attributes"]["completion_tokens"] == len(engine.reply(engine.requests[0]))
    if stream:
        assert found["stream"]["start"] == found["decode"]["start"]
        assert found["stream"]["end"] >= found["decode"]["end"]


async def test_no_span_has_text(traced: Any, client: httpx2.AsyncClient) -> None:
    answer = (await client.post(URL, json=chat(SECRET))).json()["choices"][0]["message"]["content"]
    everything = str([(span.name, span.attributes, span.events) for span in traced.exported_spans])
    assert answer not in everything
    assert SECRET not in everything


async def test_a_request_that_fails_before_a_token_has_no_phases(
    traced: Any, client: httpx2.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.full = True
    assert (await client.post(URL, json=chat())).status_code == 429
    assert list(by_name(traced)) == ["request"]
    assert by_name(traced)["request"]["attributes"]["outcome"] == "refused"


async def test_no_span_unless_asked_for(capfire: Any, app: FastAPI, client: httpx2.AsyncClient) -> None:
    await client.post(URL, json=chat())
    assert capfire.exporter.exported_spans == []
