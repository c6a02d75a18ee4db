"""Whatever a client sends, the answer is a 2xx or a 4xx in OpenAI's shape, and the engine keeps answering."""

import asyncio
import json
from typing import Any

import httpx2 as httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_server.api.openai.types import ChatRequest
from mlx_server.api.serving import LoadedModel, ServingState
from mlx_server.chat.defaults import SamplingDefaults
from mlx_server.core.settings import Settings
from mlx_server.daemon.app import create_app
from tests.fakes import small_tokenizer
from tests.fakes.scripted_engine import ScriptedEngine

URL = "/v1/chat/completions"
FIELDS = sorted(
    {*ChatRequest.model_fields, "tools", "tool_choice", "response_format", "functions", "function_call", "audio"}
    - {"messages"}
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.sampled_from([2**63, 2**64, -(2**63), 10**400, 1e308, -0.0, 1e-300]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["text", "user", "assistant", "tool", "<|im_end|>", "auto", "low", ""]),
)
keys = st.sampled_from(
    ["role", "content", "type", "text", "name", "tool_calls", "function", "arguments", "include_usage", "5", "-1"]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
        optional={"content": values, "name": values, "tool_calls": values, "tool_call_id": values},
    ),
    max_size=3,
)
bodies = st.fixed_dictionaries(
    {"messages": st.one_of(messages, messages, values)}, optional=dict.fromkeys(FIELDS, values)
)


async def post(body: Any) -> httpx.Response:
    tokenizer = small_tokenizer.shared()
    engine = ScriptedEngine(reply=lambda request: [300, 301, 302], vocab_size=602, started=True)
    serving = ServingState(Settings(model="m"))
    serving.model = LoadedModel(engine, engine.info, tokenizer, SamplingDefaults())
    transport = httpx.ASGITransport(create_app(serving))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        headers = {"content-type": "application/json"}
        response = await client.post(URL, content=json.dumps(body), headers=headers)
    assert not engine.live
    return response


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies)
def test_never_a_500(body: dict[str, Any]) -> None:
    response = asyncio.run(post(body))
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert response.json()["choices"][0]["finish_reason"] in ("stop", "length")
