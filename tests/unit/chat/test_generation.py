"""One choice's life: how it ends, and that the engine's iterator always does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from mlx_server.chat.generation import TextDelta, generate_text
from mlx_server.chat.interleave import interleave
from mlx_server.chat.tokenizer import ChatTokenizer
from mlx_server.core.errors import EngineDeadError, GenerationError, QueueFullError
from mlx_server.core.messages import FinishReason, GenerateRequest, SamplingParams
from tests.fakes import small_tokenizer
from tests.fakes.scripted_engine import ScriptedEngine

WAIT_S = 10


@pytest.fixture
def tokenizer() -> ChatTokenizer:
    return small_tokenizer.shared()


def make_request(
    tokenizer: ChatTokenizer, text: str, max_tokens: int = 100, logprobs: int | None = None
) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, top_logprobs=logprobs)
    prompt = tuple(tokenizer.encode_text(text))
    return GenerateRequest(request_id=text, prompt_token_ids=prompt, sampling=sampling)


async def collect(stream: AsyncGenerator[TextDelta, None]) -> list[TextDelta]:
    async with aclosing(stream), asyncio.timeout(WAIT_S):
        return [delta async for delta in stream]


@pytest.mark.parametrize("chunk", [1, 2, 100])
async def test_all_text_leaves(tokenizer: ChatTokenizer, chunk: int) -> None:
    engine = ScriptedEngine(started=True, chunk=chunk)
    request = make_request(tokenizer, "naïve 😀 world")
    deltas = await collect(generate_text(engine, request, tokenizer))
    assert "".join(delta.text for delta in deltas) == "naïve 😀 world"
    assert [d.finish_reason for d in deltas if d.finish_reason] == [FinishReason.STOP]
    assert deltas[-1].completion_tokens == len(request.prompt_token_ids)


async def test_length(tokenizer: ChatTokenizer) -> None:
    engine = ScriptedEngine(started=True)
    deltas = await collect(generate_text(engine, make_request(tokenizer, "hello hello hello", 2), tokenizer))
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].completion_tokens == 2


@pytest.mark.parametrize("chunk", [1, 3, 100])
async def test_a_stop_string_closes_the_engine_before_the_last_delta(tokenizer: ChatTokenizer, chunk: int) -> None:
    engine = ScriptedEngine(started=True, chunk=chunk)
    request = make_request(tokenizer, "The quick brown fox jumps", logprobs=0)
    stream = generate_text(engine, request, tokenizer, ["own f"])
    text, tokens = "", 0
    async with aclosing(stream):
        async for delta in stream:
            text += delta.text
            tokens += len(delta.tokens)
            if delta.finish_reason is not None:
                assert not engine.live
                assert delta.finish_reason is FinishReason.STOP
                assert delta.completion_tokens > 0
    assert text == "The quick br"
    assert 0 < tokens <= len(request.prompt_token_ids)


async def test_a_partial_stop_string_at_the_end_is_released(tokenizer: ChatTokenizer) -> None:
    engine = ScriptedEngine(started=True)
    request = make_request(tokenizer, "hello END")
    deltas = await collect(generate_text(engine, request, tokenizer, ["END OF"]))
    assert "".join(delta.text for delta in deltas) == "hello END"
    assert deltas[-1].finish_reason is FinishReason.STOP


async def test_logprobs_come_with_their_text(tokenizer: ChatTokenizer) -> None:
    engine = ScriptedEngine(started=True)
    request = make_request(tokenizer, "hello STOX 😀 there", logprobs=1)
    deltas = await collect(generate_text(engine, request, tokenizer, ["STOP"]))
    assert [token_id for delta in deltas for token_id, _ in delta.tokens] == list(request.prompt_token_ids)
    shown, scored = "", b""
    for delta in deltas:
        shown += delta.text
        scored += b"".join(tokenizer.token_bytes(token_id) for token_id, _ in delta.tokens)
        assert scored.decode(errors="ignore").startswith(shown) or shown.startswith(scored.decode(errors="ignore"))
    assert scored.decode() == shown


async def test_an_engine_error_is_raised(tokenizer: ChatTokenizer) -> None:
    engine = ScriptedEngine(started=True, fail_after=1)
    with pytest.raises(GenerationError, match="scripted failure"):
        await collect(generate_text(engine, make_request(tokenizer, "hello there"), tokenizer))
    assert not engine.live


async def test_an_abort_by_the_engine_is_not_a_finish(tokenizer: ChatTokenizer) -> None:
    engine = ScriptedEngine(started=True, stall_after=1)
    stream = generate_text(engine, make_request(tokenizer, "hello there"), tokenizer)
    async with aclosing(stream), asyncio.timeout(WAIT_S):
        await anext(stream)
        await engine.close()
        with pytest.raises(EngineDeadError):
            await anext(stream)


async def test_an_end_without_a_reason_is_an_error(tokenizer: ChatTokenizer) -> None:
    class Silent(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[None, None]:  # type: ignore[override]
            return
            yield

    with pytest.raises(GenerationError, match="without a reason"):
        await collect(generate_text(Silent(started=True), make_request(tokenizer, "hello"), tokenizer))


async def test_cancellation_closes_the_engine_iterator(tokenizer: ChatTokenizer) -> None:
    engine = ScriptedEngine(started=True, stall_after=0)
    task = asyncio.ensure_future(collect(generate_text(engine, make_request(tokenizer, "hello"), tokenizer)))
    async with asyncio.timeout(WAIT_S):
        await engine.stalled.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not engine.live
    assert engine.closed_early == {"hello"}


async def test_interleaving_starts_all_and_closes_all(tokenizer: ChatTokenizer) -> None:
    engine = ScriptedEngine(started=True, stall_after=2)
    streams = [generate_text(engine, make_request(tokenizer, text), tokenizer) for text in ("hello one", "hello two")]
    merged = interleave(streams)
    async with aclosing(merged), asyncio.timeout(WAIT_S):
        seen = {(await anext(merged))[0], (await anext(merged))[0]}
    assert seen == {0, 1}
    assert not engine.live


async def test_one_refusal_ends_all_choices(tokenizer: ChatTokenizer) -> None:
    class LastIsRefused(ScriptedEngine):
        def generate(self, request: GenerateRequest):  # type: ignore[no-untyped-def]
            self.full = len(self.requests) == 1
            return super().generate(request)

    engine = LastIsRefused(started=True, stall_after=0)
    engine.reply = lambda request: (engine.__setattr__("full", True), request.prompt_token_ids)[1]  # type: ignore[func-returns-value]
    streams = [generate_text(engine, make_request(tokenizer, text), tokenizer) for text in ("hello one", "hello two")]
    merged = interleave(streams)
    async with aclosing(merged), asyncio.timeout(WAIT_S):
        with pytest.raises(QueueFullError):
            async for _ in merged:
                pass
    assert not engine.live
