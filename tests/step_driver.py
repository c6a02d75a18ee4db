"""Runs requests through the real scheduler and the real runner in one thread, a step ahead, without a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx_server.runner  # noqa: F401  (loads OpenBLAS, which must come before MLX)

# isort: split
import mlx.core as mx
from mlx_lm.generate import generate_step

from mlx_server.core.messages import FinishReason, GenerateRequest, Priority, SamplingParams, TokenDelta, TokenLogprob
from mlx_server.core.step import StepPlan
from mlx_server.runner import loader
from mlx_server.runner.kv_pool import KVPool
from mlx_server.runner.memory import kept_limit
from mlx_server.runner.model_runner import LaunchedStep, ModelRunner
from mlx_server.runner.probe import probe
from mlx_server.runner.sampler import Sampler
from mlx_server.services.batching.config import SchedulerConfig
from mlx_server.services.batching.scheduler import Scheduler


@dataclass
class Outcome:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    cached_tokens: int = 0


class StepDriver:
    """One model, loaded as the daemon loads it, with a fresh scheduler, pool and runner per `fresh`."""

    def __init__(self, folder: Path, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self.loaded = loader.load(folder, lambda stage, fraction: None)
        probe(self.loaded.config, self.loaded.servable)
        self.model: Any = self.loaded.servable._model
        self._eos = eos_token_ids
        self.steps_in_flight = 2
        self._solo: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self.fresh()

    def fresh(self, num_blocks: int = 256, kept_bytes: int | None = None, **config: Any) -> None:
        servable = self.loaded.servable
        pool = KVPool(servable.layers, config.get("initial_blocks", num_blocks))
        sampler = Sampler(servable.vocab_size, self._eos)
        self.runner = ModelRunner(
            servable, pool, sampler, kept_limit(pool.nbytes) if kept_bytes is None else kept_bytes
        )
        defaults: dict[str, Any] = {
            "model_identity": "test",
            "num_blocks": num_blocks,
            "max_model_len": num_blocks * 32,
            "eos_token_ids": self._eos,
            "step_target_s": 100.0,
        }
        self.scheduler = Scheduler(SchedulerConfig(**{**defaults, **config}))
        self.outcomes: dict[str, Outcome] = {}
        self._in_flight: deque[tuple[StepPlan, LaunchedStep]] = deque()
        self.now = 0.0

    def add(
        self,
        request_id: str,
        prompt: Iterable[int],
        max_tokens: int = 32,
        priority: Priority = Priority.NORMAL,
        generated: Iterable[int] = (),
        **sampling: Any,
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **sampling})
        self.outcomes[request_id] = Outcome()
        message = GenerateRequest(
            request_id=request_id,
            prompt_token_ids=tuple(prompt),
            sampling=params,
            generated_token_ids=tuple(generated),
            priority=priority,
        )
        self.scheduler.add(message, self.now)

    def step(self) -> bool:
        """One turn of the scheduling loop, `steps_in_flight` at a time. False: nothing is left to do."""
        self.now += 0.01
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            self._in_flight.append((plan, self.runner.launch(plan)))
            if len(self._in_flight) < self.steps_in_flight:
                return True
        if self._in_flight:
            done, launched = self._in_flight.popleft()
            self._take(self.scheduler.update(done, self.runner.finish(launched)))
        self._take(self.scheduler.take_undelivered())
        return bool(self._in_flight) or self.scheduler.has_work

    def run(self, most_steps: int = 20_000) -> dict[str, Outcome]:
        """Until everything has ended; the outcomes so far, by request id."""
        for _ in range(most_steps):
            if not self.step():
                self.scheduler.check_invariants()
                assert self.scheduler.cache.blocks.num_used == 0
                return self.outcomes
        raise AssertionError("the requests did not end")

    def _take(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            outcome = self.outcomes[delta.request_id]
            assert outcome.finish_reason is None, "a delta after the end"
            outcome.tokens += delta.token_ids
            outcome.logprobs += delta.logprobs
            outcome.finish_reason = delta.finish_reason
            outcome.error = delta.error
            outcome.cached_tokens = delta.cached_tokens

    def solo(self, prompt: tuple[int, ...], max_tokens: int = 32) -> list[int]:
        """mlx-lm's own single-request greedy generation with the same weights."""
        key = (prompt, max_tokens)
        if key not in self._solo:
            steps = generate_step(
                mx.array(prompt), self.model, max_tokens=max_tokens, sampler=lambda x: mx.argmax(x, axis=-1)
            )
            self._solo[key] = [int(token) for token, _ in steps]
        return self._solo[key]
