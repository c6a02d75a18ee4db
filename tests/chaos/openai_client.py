"""The official client, whose answers are put into the same form as the bare client's."""

from __future__ import annotations

import time
from typing import Any

import openai

from tests.chaos.answer import Answer

_STANDARD = frozenset(
    {
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "seed",
        "top_p",
        "n",
        "stop",
        "logprobs",
        "top_logprobs",
        "frequency_penalty",
    }
)


def make_client(url: str, timeout_s: float) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", timeout=timeout_s, max_retries=0, http_client=http)


async def ask(client: openai.AsyncOpenAI, body: dict[str, Any], stream: bool, into: Answer | None = None) -> Answer:
    """One chat completion; what goes wrong is noted in the answer."""
    answer = into or Answer()
    fields = {name: value for name, value in body.items() if name in _STANDARD}
    extra = {name: value for name, value in body.items() if name not in _STANDARD}
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    try:
        create: Any = client.chat.completions.create
        reply = await create(**fields, **options, extra_body=extra)
        answer.status = 200
        if not stream:
            answer.take(reply.model_dump(), "message", time.monotonic())
            return answer
        async for chunk in reply:
            answer.take(chunk.model_dump(), "delta", time.monotonic())
        answer.dones = 1  # the client hides the event; it has read to the end of the stream
    except openai.APIStatusError as error:
        answer.status = error.status_code
        answer.headers = {name.lower(): value for name, value in error.response.headers.items()}
        answer.error = error.body if isinstance(error.body, dict) else {"message": str(error)}
    except openai.APIConnectionError as error:
        answer.transport = f"{type(error).__name__}: {error.__cause__ or error}"
    except openai.APIError as error:  # an error event
        answer.error = error.body if isinstance(error.body, dict) else {"message": error.message}
    return answer
