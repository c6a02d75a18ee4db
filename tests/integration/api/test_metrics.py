"""/metrics over real requests: what moves, who may look, and in which format."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from mlx_server.api.openapi import document
from mlx_server.api.serving import LoadedModel, ServingState
from mlx_server.chat.defaults import load_defaults
from mlx_server.chat.tokenizer import load_tokenizer
from mlx_server.core.settings import Settings
from mlx_server.daemon.app import create_app
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.engine.inproc import InProcessEngine
from mlx_server.services.keys import add_key
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, WAIT_S, RawCall, chat

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> Samples:
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200
    families = parse_text(response.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    """Of the one sample with these labels, whatever else it has."""
    found = [v for (sample, has), v in samples.items() if sample == name and labels.items() <= dict(has).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@asynccontextmanager
async def real_daemon() -> AsyncIterator[tuple[httpx.AsyncClient, ServingState]]:
    """The application over the embedded model, in this process."""
    settings = Settings(engine="inprocess", kv_memory="8MB", seed=1)
    engine = InProcessEngine(settings, DEMO_FOLDER, "demo")
    serving = ServingState(settings)
    transport = httpx.ASGITransport(create_app(serving))
    tokenizer = load_tokenizer(DEMO_FOLDER)
    try:
        info = await engine.start()
        serving.model = LoadedModel(engine, info, tokenizer, load_defaults(DEMO_FOLDER))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, serving
    finally:
        await engine.close()
        tokenizer.close()


async def test_values_move_over_real_requests() -> None:
    async with real_daemon() as (client, _):
        before = await scrape(client)
        words = "Tell me about the sea, the wind and the harbour. " * 8
        whole = await client.post(URL, json={"messages": [{"role": "user", "content": words}], "max_tokens": 12})
        usage = whole.json()["usage"]
        again = {"messages": [{"role": "user", "content": words}], "max_tokens": 12, "stream": True, "n": 2}
        assert (await client.post(URL, json=again)).status_code == 200
        after = await scrape(client)

    def moved(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    prompt = usage["prompt_tokens"]
    assert moved("vllm:prompt_tokens_total") == 3 * prompt
    assert moved("vllm:prefix_cache_queries_total") == 3 * prompt
    assert prompt < moved("vllm:prefix_cache_hits_total") < 3 * prompt
    ended = sum(moved("vllm:request_success_total", finished_reason=reason) for reason in ("stop", "length"))
    assert ended == 3
    assert moved("vllm:request_success_total", finished_reason="abort") == 0
    generated = moved("vllm:request_generation_tokens_sum")
    assert generated == moved("vllm:generation_tokens_total") >= usage["completion_tokens"]
    for name in (
        "vllm:time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
    ):
        assert moved(f"{name}_count") == 3
    assert moved("vllm:request_prompt_tokens_sum") == 3 * prompt
    assert 0 < moved("vllm:inter_token_latency_seconds_count") <= generated - 3
    assert 0 < moved("vllm:time_to_first_token_seconds_sum") <= moved("vllm:e2e_request_latency_seconds_sum")
    assert moved("mlx_serve_kv_commits_total") > 0
    assert moved("mlx_serve_engine_steps_total") > 0
    assert moved("mlx_serve_kv_blocks", state="cached") > 0
    assert value(after, "mlx_serve_http_requests_total", path="/metrics", status="2xx") == 1
    assert value(after, "mlx_serve_engine_up") == 1
    assert value(after, "mlx_serve_http_requests_total", method="POST", path=URL, status="2xx") == 2
    assert value(after, "mlx_serve_device_memory_bytes", kind="active") > 0
    assert value(after, "vllm:num_requests_running") == 0


async def test_counters_agree_with_the_parsers_of_both_formats(client: httpx.AsyncClient) -> None:
    await client.post(URL, json=chat())
    response = await client.get("/metrics", headers=OPENMETRICS)
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    modern = {s.name: s.value for family in parse_openmetrics(response.text) for s in family.samples}
    plain = await scrape(client)
    assert modern["vllm:request_generation_tokens_sum"] == value(plain, "vllm:request_generation_tokens_sum") > 0
    assert (await client.get("/metrics")).headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    documented = document()["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert set(documented) == {"text/plain", "application/openmetrics-text"}


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", "application/openmetrics-text; version=x", "text/plain; version=", "a;version=1"]
)
async def test_any_accept_header_is_answered(client: httpx.AsyncClient, accept: str) -> None:
    response = await client.get("/metrics", headers={"accept": accept})
    assert response.status_code == 200
    assert "vllm:num_requests_running{" in response.text


async def test_while_the_model_loads(client: httpx.AsyncClient, serving: ServingState) -> None:
    serving.model = None
    samples = await scrape(client)
    assert value(samples, "mlx_serve_engine_up") == 0
    assert not [name for name, _ in samples if name == "vllm:num_requests_running"]


async def test_failed_aborted_and_refused_requests(
    app: FastAPI, client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.full = True
    assert (await client.post(URL, json=chat())).status_code == 429
    engine.full, engine.fail_after = False, 1
    assert (await client.post(URL, json=chat())).status_code == 500
    engine.fail_after, engine.stall_after = None, 1
    call = RawCall(app, chat(stream=True))
    async with asyncio.timeout(WAIT_S):
        await engine.stalled.wait()
        assert value(await scrape(client), "vllm:num_requests_running") == 1
        call.go_away()
        await call.task
    samples = await scrape(client)
    ended = {
        r: value(samples, "vllm:request_success_total", finished_reason=r) for r in ("stop", "length", "abort", "error")
    }
    assert ended == {"stop": 0, "length": 0, "abort": 1, "error": 1}
    assert value(samples, "vllm:e2e_request_latency_seconds_count") == 0
    assert value(samples, "vllm:time_to_first_token_seconds_count") == 2
    assert value(samples, "mlx_serve_http_requests_total", path=URL, status="4xx") == 1
    assert value(samples, "mlx_serve_http_requests_total", path=URL, status="5xx") == 1


async def test_labels_are_bounded(client: httpx.AsyncClient) -> None:
    for index in range(20):
        await client.get(f"/no/such/{index}")
        await client.get(f"/v1/models/name-{index}")
        await client.request(f"METHOD{index}", "/health")
    labels = {labels for name, labels in await scrape(client) if name == "mlx_serve_http_requests_total"}
    paths = {(dict(has)["method"], dict(has)["path"], dict(has)["status"]) for has in labels}
    assert paths == {
        ("GET", "other", "4xx"),
        ("GET", "/v1/models/{model_id}", "4xx"),
        ("other", "/health", "4xx"),
    }


async def test_a_key_of_any_tier_may_look(tmp_path: Path, serving: ServingState) -> None:
    keys_file = tmp_path / "keys.json"
    about, key = add_key(keys_file, "prometheus", "low")
    serving.settings = serving.settings.model_copy(update={"keys_file": keys_file})
    transport = httpx.ASGITransport(create_app(serving))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/metrics")).status_code == 401
        keyed = {"x-api-key": key}
        assert (await client.post(URL, json=chat(), headers=keyed)).status_code == 200
        text = (await client.get("/metrics", headers=keyed)).text
    assert "vllm:request_success_total" in text
    assert key not in text and about.id not in text
