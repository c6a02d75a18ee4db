"""500 requests on a real model in a pool too small for them, cancelled at random: exact texts, nothing lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import mlx_server.runner  # noqa: F401  (loads OpenBLAS, which must come before MLX)

# isort: split
import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from mlx_server.core.messages import EngineInfo, EngineStats, FinishReason, GenerateRequest, Priority, SamplingParams
from mlx_server.core.settings import Settings
from mlx_server.engine.inproc import InProcessEngine
from mlx_server.runner import loader
from mlx_server.runner.assemble import assemble
from mlx_server.runner.model_runner import ModelRunner
from tests import tiny_models

REQUESTS = 500
WAVE = 50
BLOCKS = 40
WAIT_S = 100
EOS = frozenset(range(17, 27))
CONFIG: dict[str, Any] = {
    **tiny_models.family_config("qwen3"),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "eos_token_id": sorted(EOS),
}


@dataclass
class Client:
    """One request and what came of it. `cancel_after`: deltas until its stream is closed, 0 before any."""

    request: GenerateRequest
    cancel_after: int | None
    tokens: list[int] = field(default_factory=list)
    reasons: list[FinishReason] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def clients() -> list[Client]:
    """Few distinct prompts, many with common starts, so that blocks are shared while rows come and go."""
    rng = random.Random(20)
    starts = [tuple(rng.randrange(20, 128) for _ in range(n)) for n in (40, 70, 150)]
    pool = [rng.choice(starts) + tuple(rng.randrange(20, 128) for _ in range(rng.randint(1, 30))) for _ in range(25)]
    pool += [tuple(rng.randrange(20, 128) for _ in range(rng.randint(1, 45))) for _ in range(25)]
    made = []
    for i in range(REQUESTS):
        sampling = SamplingParams(max_tokens=rng.choice([1, 2, 7, 20, 45]), temperature=0.0)
        request = GenerateRequest(
            request_id=f"r{i}",
            prompt_token_ids=rng.choice(pool),
            sampling=sampling,
            priority=rng.choice(list(Priority)),
            cache_salt=rng.choice(["", "", "other"]),
        )
        made.append(Client(request, rng.choice([None, None, None, 0, 1, 3, 10])))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save(CONFIG, tmp_path_factory.mktemp("stress"))


@pytest.fixture(params=[False, True], ids=["step by step", "a step ahead"])
async def engine(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[InProcessEngine]:
    """`overlaps` is forced both ways: a GPU launches a step before the one before it is finished, the CPU does not."""
    settings = Settings(kv_blocks=BLOCKS, max_num_seqs=16, max_num_batched_tokens=128, max_queue=REQUESTS)

    def make_executor(progress: loader.Progress) -> tuple[ModelRunner, EngineInfo]:
        runner, info = assemble(settings, folder, "tiny", progress)
        runner.overlaps = request.param
        return runner, info

    engine = InProcessEngine(settings, folder, "tiny", make_executor=make_executor)
    await engine.start()
    yield engine
    await engine.close()


async def ask(engine: InProcessEngine, client: Client) -> None:
    deltas = cast(Any, engine.generate(client.request))
    async with aclosing(deltas):
        seen = 0
        if client.cancel_after == 0:
            first = asyncio.ensure_future(anext(deltas))
            await asyncio.sleep(0)  # submitted, not answered
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return
        async for delta in deltas:
            assert not client.reasons, "a delta after the end"
            client.tokens += delta.token_ids
            seen += 1
            if delta.finish_reason is not None:
                client.reasons.append(delta.finish_reason)
                client.errors += [delta.error] if delta.error else []
            if client.cancel_after == seen:
                return


async def ask_in_waves(engine: InProcessEngine, everyone: list[Client]) -> None:
    """The next wave comes when half of the one before is through, so its urgent ones meet others' running rows."""
    tasks: set[asyncio.Future[None]] = set()
    for first in range(0, len(everyone), WAVE):
        wave = {asyncio.ensure_future(ask(engine, client)) for client in everyone[first : first + WAVE]}
        tasks |= wave
        while sum(task.done() for task in wave) < WAVE // 2:
            await asyncio.wait({task for task in wave if not task.done()}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*tasks)


async def until_idle(engine: InProcessEngine) -> EngineStats:
    """The rows of closed streams go at the next step boundary."""
    while True:
        stats = await engine.stats()
        if stats.running == stats.waiting == stats.blocks_used == 0 and engine.host.is_idle:
            return stats
        await asyncio.sleep(0)


class Alone:
    """mlx-lm's own greedy text for one request at a time."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = loader.load(folder, lambda stage, fraction: None).servable._model
        self._texts: dict[tuple[int, ...], list[int]] = {}

    def text(self, prompt: tuple[int, ...], max_tokens: int) -> tuple[list[int], FinishReason]:
        if prompt not in self._texts:
            steps = generate_step(mx.array(prompt), self._model, max_tokens=45, sampler=lambda x: mx.argmax(x, axis=-1))
            self._texts[prompt] = [int(token) for token, _ in steps]
        text = self._texts[prompt][:max_tokens]
        end = next((i for i, token in enumerate(text) if token in EOS), None)
        return (text, FinishReason.LENGTH) if end is None else (text[:end], FinishReason.STOP)


async def test_500_requests_in_a_pool_too_small(engine: InProcessEngine, folder: Path) -> None:
    everyone = clients()
    async with asyncio.timeout(WAIT_S):
        await ask_in_waves(engine, everyone)
        stats = await until_idle(engine)

    reference = Alone(folder)
    completed = cut = 0
    reasons: set[FinishReason] = set()
    for client in everyone:
        request = client.request
        text, reason = reference.text(request.prompt_token_ids, request.sampling.max_tokens)
        assert client.errors == []
        if client.reasons:
            completed += 1
            assert (client.tokens, client.reasons) == (text, [reason]), request.request_id
        else:
            cut += 1
            assert client.cancel_after is not None, f"{request.request_id} ended without a reason"
            assert client.tokens == text[: len(client.tokens)], request.request_id
        reasons |= set(client.reasons)

    assert completed + cut == REQUESTS
    assert min(completed, cut) > REQUESTS // 5
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
    assert stats.requests_finished == REQUESTS
    assert stats.failed_steps == 0
    assert stats.blocks_free + stats.blocks_cached == BLOCKS
    assert stats.preemptions > 0, "the pool was meant to be too small"
    assert stats.evictions > 0
    assert stats.cached_tokens > 0
    engine.host.core.scheduler.check_invariants()
    assert engine.host.is_idle


async def test_the_engine_answers_exactly_after_a_flood_of_cancels(engine: InProcessEngine, folder: Path) -> None:
    everyone = clients()[:150]
    for client in everyone:
        client.cancel_after = 0
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(ask(engine, client) for client in everyone))
        await until_idle(engine)
        last = Client(everyone[3].request, None)
        await ask(engine, last)
    text, reason = Alone(folder).text(last.request.prompt_token_ids, last.request.sampling.max_tokens)
    assert (last.tokens, last.reasons) == (text, [reason])
