"""The official `openai` client against the daemon, the engine and the embedded model."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from mlx_server.chat.tokenizer import load_tokenizer
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.daemon.server_thread import ServerThread

TIMEOUT_S = 60
CHAT: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(server: ServerThread) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: ServerThread) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=server.url + "/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0
    ) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": "demo", "messages": CHAT, "temperature": 0} | fields)


def stream_text(client: openai.OpenAI, **fields: Any) -> tuple[str, str | None, Any]:
    text, reason, usage = "", None, None
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}, **fields):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason, usage


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


def test_a_streamed_answer_is_the_whole_answer(client: openai.OpenAI) -> None:
    whole = ask(client)
    text, reason, usage = stream_text(client)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == reason == "stop"
    assert "Paris" in text
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert whole._request_id.startswith("req-")


def test_the_second_time_the_prompt_is_cached(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Please say hello. " * 10}]
    ask(client, messages=messages, max_tokens=2)
    again = ask(client, messages=messages, max_tokens=2)
    assert again.usage.prompt_tokens_details.cached_tokens >= 32


def test_length(client: openai.OpenAI) -> None:
    answer = ask(client, max_completion_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2


def test_a_stop_string_cuts_the_text(client: openai.OpenAI) -> None:
    full = ask(client).choices[0].message.content
    stop = full[3:6]
    answer = ask(client, stop=[stop])
    assert answer.choices[0].message.content == full[: full.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert stream_text(client, stop=stop)[0] == full[: full.index(stop)]


def test_seeds_decide_the_text(client: openai.OpenAI) -> None:
    def draw(seed: int) -> str:
        return str(ask(client, temperature=2, max_tokens=24, seed=seed).choices[0].message.content)

    first = draw(-7)
    assert draw(-7) == first
    assert any(draw(seed) != first for seed in range(3))


def test_several_choices(client: openai.OpenAI) -> None:
    answer = ask(client, n=3, temperature=2, max_tokens=16, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    streamed: dict[int, str] = {}
    for chunk in ask(client, n=3, temperature=2, max_tokens=16, seed=5, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert streamed == {choice.index: choice.message.content for choice in answer.choices}


def test_logprobs(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-3)


def test_a_bias_of_minus_100_bans_a_token(client: openai.OpenAI) -> None:
    text = ask(client).choices[0].message.content
    first = load_tokenizer(DEMO_FOLDER).encode_text(text)[0]
    biased = ask(client, logit_bias={str(first): -100}).choices[0].message.content
    assert biased
    assert load_tokenizer(DEMO_FOLDER).encode_text(biased)[0] != first


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"stop": 5}, "stop"),
        ({"top_k": "x"}, "top_k"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_requests_do_no_harm(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    extra = {"extra_body": fields} if "top_k" in fields else fields
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **extra)
    assert caught.value.param == param
    assert "Paris" in ask(client).choices[0].message.content


def test_a_prompt_longer_than_the_context(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages=[{"role": "user", "content": "hello " * 20_000}])
    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        ask(client, model="gpt-4o")


async def test_many_at_once_answer_as_alone(async_client: openai.AsyncOpenAI) -> None:
    questions = [f"What is {a} plus {b}?" for a in range(2, 6) for b in range(2, 5)]

    async def one(question: str) -> str:
        answer = await async_client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24
        )
        return answer.choices[0].message.content or ""

    alone = [await one(question) for question in questions]
    assert await asyncio.gather(*map(one, questions)) == alone


async def test_a_stream_given_up_frees_its_row(async_client: openai.AsyncOpenAI, server: ServerThread) -> None:
    stream = await async_client.chat.completions.create(
        model="demo", messages=CHAT, stream=True, extra_body={"ignore_eos": True}, max_tokens=4000
    )
    async for _ in stream:
        break
    await stream.close()
    async with asyncio.timeout(TIMEOUT_S):
        while (await health(async_client))["stats"]["running"]:
            pass


async def health(client: openai.AsyncOpenAI) -> Any:
    return await client.get("../health", cast_to=dict[str, Any])
