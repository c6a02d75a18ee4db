"""A traced request leaves one span with its figures and without its text."""

from __future__ import annotations

import httpx2
import pytest

from mlx_server.telemetry import traces


@pytest.fixture
def traced(capfire, monkeypatch):
    monkeypatch.setattr(traces, "_enabled", True)
    return capfire.exporter


async def _get(path: str) -> None:
    from mlx_server.api.request_log import RequestLog

    async def app(scope, receive, send):
        scope["state"]["_"] = None
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx2.ASGITransport(app=RequestLog(app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get(path)).status_code == 204


async def test_one_span_a_request(traced):
    await _get("/v1/models")
    spans = traced.exported_spans_as_dict()
    assert [span["name"] for span in spans] == ["request"]
    assert spans[0]["attributes"]["status"] == 204
    assert spans[0]["attributes"]["path"] == "/v1/models"


async def test_no_span_unless_asked_for(capfire):
    await _get("/v1/models")
    assert capfire.exporter.exported_spans_as_dict() == []
