"""Thousands of chat requests with a fault: refused in the API's own shape, naming the field, and never a 5xx."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import jsonschema_rs
import pytest

from mlx_server.api.openapi import document
from mlx_server.api.serving import LoadedModel, ServingState
from mlx_server.chat.defaults import SamplingDefaults
from mlx_server.core.settings import Settings
from mlx_server.daemon.app import create_app
from tests.fakes import small_tokenizer
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fuzz.checks import LEGAL_REFUSALS
from tests.fuzz.mutants import LEGAL, broken_text, named, one_fault

URL = "/v1/chat/completions"
TIED = {"max_tokens": "min_tokens", "max_completion_tokens": "min_tokens", "logprobs": "top_logprobs"}
"""A fault in the first may be told as one of the second."""


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(reply=lambda request: [300, 301, 302], vocab_size=602, started=True)


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[httpx.AsyncClient]:
    serving = ServingState(Settings(model="org/small"))
    serving.model = LoadedModel(engine, engine.info, small_tokenizer.shared(), SamplingDefaults())
    transport = httpx.ASGITransport(create_app(serving))
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


def schema(name: str) -> Any:
    about = {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}
    return jsonschema_rs.Draft202012Validator(about)


async def test_one_fault_is_refused_with_its_field(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    request, refusal = schema("CreateChatCompletionRequest"), schema("ErrorResponse")
    request.validate(LEGAL)
    statuses: Counter[int] = Counter()
    for path, body in one_fault():
        where, legal = named(path), request.is_valid(body)
        response = await client.post(URL, content=json.dumps(body))
        statuses[response.status_code] += 1
        assert response.status_code in ((200, 400, 404) if legal else (400,)), f"{where}: {response.text}"
        if response.status_code == 200:
            continue
        refusal.validate(response.json())
        error = response.json()["error"]
        assert is_about(error["param"], where), f"{where}: {error}"
        if legal and response.status_code == 400:
            about = f"{error['code']} {error['param']} {error['message']}"
            assert any(re.fullmatch(reason, about) for reason in LEGAL_REFUSALS), f"{where}: {about}"
    assert statuses[400] > 1000
    assert statuses[200] > 100
    assert not engine.live


def is_about(param: str | None, where: str) -> bool:
    """Whether a refusal names the place of the fault: the same field, one in it, or one that it makes illegal."""
    if param is None:
        return False
    stem = re.match(r"messages(\[\d+\])?|[^.\[]+", where)
    assert stem is not None
    if param == "messages":  # the template refuses them, or they are too long with what a field adds
        return stem[0].startswith(("messages", "chat_template_kwargs"))
    return param.startswith(stem[0]) or param == TIED.get(where)


async def test_broken_text_is_never_a_server_error(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    refusal = schema("ErrorResponse")
    statuses: Counter[int] = Counter()
    for body in broken_text(1000, seed=2026):
        response = await client.post(URL, content=body)
        statuses[response.status_code] += 1
        assert response.status_code in (200, 400, 404), f"{body!r}: {response.text}"
        if response.status_code != 200:
            refusal.validate(response.json())
    assert statuses[400] > 800
    assert not engine.live


async def test_the_legal_one_is_answered(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, content=json.dumps(LEGAL))
    assert response.status_code == 200, response.text
