"""What is refused: the status, OpenAI's shape, the field, and the legal range."""

import json
import logging
from typing import Any

import httpx2 as httpx
import pytest

from mlx_server.api.serving import ServingState
from mlx_server.core.errors import EngineDeadError, GenerationError
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, chat

IMAGE = [{"type": "image_url", "image_url": {"url": "http://evil.example/x.png"}}]

BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": -0.1}, "temperature", "0 to 2"),
    ({"temperature": 2.1}, "temperature", "0 to 2"),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"temperature": True}, "temperature", "number"),
    ({"temperature": 10**400}, "temperature", "0 to 2"),
    ({"top_p": 1.01}, "top_p", "0 to 1"),
    ({"top_k": -2}, "top_k", "integer"),
    ({"top_k": 1.5}, "top_k", "integer"),
    ({"min_p": 7}, "min_p", "0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "0.01"),
    ({"presence_penalty": 2.5}, "presence_penalty", "-2 to 2"),
    ({"frequency_penalty": -3}, "frequency_penalty", "-2 to 2"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": -1}, "max_tokens", "at least 1"),
    ({"max_completion_tokens": "9"}, "max_completion_tokens", "integer"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most"),
    ({"n": 0}, "n", "1 to 16"),
    ({"n": 1_000_000}, "n", "1 to 16"),
    ({"n": True}, "n", "1 to 16"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "0 to 20"),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
    ({"logprobs": 5}, "logprobs", "true or false"),
    ({"seed": 2**64}, "seed", "2^64"),
    ({"seed": 1.5}, "seed", "integer"),
    ({"stop": 5}, "stop", "string"),
    ({"stop": ["a", 5]}, "stop[1]", "string"),
    ({"stop": [""]}, "stop[0]", "1 to"),
    ({"stop": ["x"] * 17}, "stop", "at most 16"),
    ({"stop": {"a": 1}}, "stop", "string"),
    ({"logit_bias": {"602": 1}}, "logit_bias", "0 to 601"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "0 to 601"),
    ({"logit_bias": {"hello": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "-100 to 100"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5", "-100 to 100"),
    ({"logit_bias": {"5": 10**400}}, "logit_bias.5", "-100 to 100"),
    ({"logit_bias": []}, "logit_bias", "object"),
    ({"logit_bias": dict.fromkeys(map(str, range(5000)), 1)}, "logit_bias", "at most 4096"),
    ({"priority": "urgent"}, "priority", "'normal' or 'low'"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "true or false"),
    ({"stream_options": []}, "stream_options", "object"),
    ({"model": 5}, "model", "name"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": [5]}, "messages[0]", "object"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "'user'"),
    ({"messages": [{"role": "root", "content": "x"}]}, "messages[0].role", "'user'"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role", "'user'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]", "object"),
    ({"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0].type", "text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        "string",
    ),
    ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "messages[0].name", "string"),
    (
        {"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]},
        "messages[0].tool_calls",
        "assistant",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]", "function"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs.chat_template", "cannot"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize", "cannot"),
    ({"chat_template_kwargs": {"eos_token": "x"}}, "chat_template_kwargs.eos_token", "cannot"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs.a b", "cannot"),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs", "object"),
    ({"tools": [{"type": "function"}]}, "tools", "not supported"),
    ({"tools": 5}, "tools", "not supported"),
    ({"tool_choice": "required"}, "tool_choice", "none"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "none"),
    ({"functions": [{}]}, "functions", "not supported"),
    ({"function_call": {"name": "f"}}, "function_call", "none"),
    ({"response_format": {"type": "json_object"}}, "response_format", "text"),
    ({"response_format": "json"}, "response_format", "text"),
    ({"modalities": ["text", "audio"]}, "modalities", "text"),
    ({"audio": {"voice": "x"}}, "audio", "not supported"),
    ({"web_search_options": {}}, "web_search_options", "not supported"),
]


@pytest.mark.parametrize(("fields", "field", "words"), BAD_FIELDS)
async def test_a_bad_field_is_named_with_what_is_legal(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], field: str, words: str
) -> None:
    response = await client.post(URL, json=chat() | fields)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert words in error["message"]
    assert field in error["message"] or field.startswith("chat_template_kwargs.")
    assert not engine.requests


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"x"', b'{"temperature": NaN}', b'{"temperature": Infinity}', b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"a": 1e999}', b"[" * 100_00,
        b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", b'{"a":' * 70 + b"1" + b"}" * 70, b"\x00", b'{"a": "\xed\xa0\x80"}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("content_type", ["application/json", None])
async def test_what_is_not_a_json_object_is_a_400(
    client: httpx.AsyncClient, body: bytes, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = await client.post(URL, content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


async def test_missing_messages(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json={})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data"},
        {"origin": "http://localhost"},  # a page can post a typeless blob without a preflight
    ],
)
async def test_other_content_types_are_a_415(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    response = await client.post(URL, content=json.dumps(chat()), headers=headers)
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "bad_content_type"


async def test_a_compressed_body_is_a_415(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await client.post(URL, content=b"x", headers=headers)
    assert response.status_code == 415


async def test_a_declared_body_that_is_too_large_is_a_413(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json=chat("x" * 70_000))
    assert response.status_code == 413
    assert "65536" in response.json()["error"]["message"]


async def test_a_chunked_body_that_is_too_large_is_a_413(client: httpx.AsyncClient) -> None:
    sent = 0

    async def parts() -> Any:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b" " * 10_000

    response = await client.post(URL, content=parts(), headers={"content-type": "application/json"})
    assert response.status_code == 413


async def test_unknown_paths_and_methods(client: httpx.AsyncClient) -> None:
    missing = await client.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["type"] == "invalid_request_error"
    wrong = await client.get(URL)
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "method_not_allowed"


async def test_an_unknown_model_is_a_404_that_names_what_is_served(client: httpx.AsyncClient) -> None:
    answers = []
    for model in ("gpt-4o", "../../etc/passwd", "../../etc/missing"):
        response = await client.post(URL, json=chat() | {"model": model})
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "org/small" in error["message"]
        answers.append(error["message"].replace(model, ""))
    assert len(set(answers)) == 1


@pytest.mark.parametrize("content", ["hello " * 800, "x" * 600, "hello " * 9000])
async def test_a_prompt_longer_than_the_context(
    client: httpx.AsyncClient, engine: ScriptedEngine, content: str
) -> None:
    response = await client.post(URL, json=chat(content))
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 512 tokens")
    assert not engine.requests


async def test_the_templates_own_words(client: httpx.AsyncClient) -> None:
    response = await client.post(URL, json=chat("refuse me"))
    assert response.status_code == 400
    assert "Conversation roles must alternate" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("stream", [False, True])
class TestEngineRefusals:
    """Before the first token a stream gets a proper status too."""

    async def test_full_queue(self, client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool) -> None:
        engine.full = True
        response = await client.post(URL, json=chat(stream=stream, n=3))
        assert response.status_code == 429
        assert response.headers["retry-after"] == "7"
        assert response.json()["error"]["code"] == "queue_full"

    async def test_loading(self, client: httpx.AsyncClient, serving: ServingState, stream: bool) -> None:
        serving.model = None
        response = await client.post(URL, json=chat(stream=stream))
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "model_loading"

    async def test_not_ready_any_more(self, client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool) -> None:
        engine.started = False
        response = await client.post(URL, json=chat(stream=stream))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_loading")

    async def test_dead(self, client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool) -> None:
        engine.dead = True
        response = await client.post(URL, json=chat(stream=stream))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_stopped")

    async def test_dies_at_submission(self, client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool) -> None:
        engine.crash = EngineDeadError("gone")
        response = await client.post(URL, json=chat(stream=stream))
        assert response.status_code == 503

    async def test_generation_error(self, client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool) -> None:
        engine.crash = GenerationError("out of luck")
        response = await client.post(URL, json=chat(stream=stream))
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "out of luck"

    async def test_failure_before_the_first_token(
        self, client: httpx.AsyncClient, engine: ScriptedEngine, stream: bool
    ) -> None:
        engine.fail_after = 0
        response = await client.post(URL, json=chat(stream=stream))
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "generation_failed"

    async def test_the_unexpected_says_nothing_of_its_inside(
        self,
        client: httpx.AsyncClient,
        engine: ScriptedEngine,
        stream: bool,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        engine.crash = KeyError("secret inside")
        response = await client.post(URL, json=chat(stream=stream))
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "secret" not in response.text
        assert any(record.exc_info for record in caplog.records if record.levelno == logging.ERROR)


async def test_a_failure_after_the_first_token_of_a_whole_answer_is_a_500(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.fail_after = 2
    response = await client.post(URL, json=chat())
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "scripted failure"
