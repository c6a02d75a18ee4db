"""Sampling on the device, all rows of a step at once, in the graph of the step.

Order: logit bias and the ban of end tokens before `min_tokens`; repetition, then frequency and presence penalty;
temperature; top-k; top-p over what top-k left; min-p; one draw. Greedy rows take the argmax of the penalised
logits. A draw inverts the cumulative distribution at one uniform number per row, keyed by (seed, position)
alone, so the same seed gives the same text in any batch, after preemption and after a restart. Log-probabilities
are those of the model's own distribution, before all of the above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlx_server.core.messages import SamplingParams, TokenLogprob
from mlx_server.core.step import Join, SampledToken

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: dividing by it would overflow float32."""

_MASK64 = (1 << 64) - 1
_BELOW_ONE = 1.0 - 2.0**-20  # keeps u * total strictly below total in float32


@dataclass(slots=True, frozen=True)
class SampleSpec:
    """One row to sample. position: of the token to be sampled; num_generated: tokens before it."""

    request_id: str
    position: int
    num_generated: int


@dataclass(slots=True)
class SampleOutput:
    """Lazy device arrays: tokens `int32[rows]`; logprob `[rows]`, top ids and logprobs `[rows, n]` if asked for."""

    tokens: mx.array
    wanted: list[int | None]
    logprob: mx.array | None = None
    top_ids: mx.array | None = None
    top_logprobs: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """Everything that the step must evaluate."""
        extra = (self.logprob, self.top_ids, self.top_logprobs)
        return [self.tokens, *(a for a in extra if a is not None)]

    def read(self) -> list[SampledToken]:
        """Wait for the device and bring the tokens to the host."""
        tokens: list[int] = self.tokens.tolist()  # type: ignore[assignment]
        if self.logprob is None:
            return [SampledToken(t) for t in tokens]
        logprobs: list[float] = self.logprob.tolist()  # type: ignore[assignment]
        ids: Any = self.top_ids.tolist() if self.top_ids is not None else [[]] * len(tokens)
        tops: Any = self.top_logprobs.tolist() if self.top_logprobs is not None else [[]] * len(tokens)
        return [
            SampledToken(t, None if n is None else TokenLogprob(lp, _best(i, p, n)))
            for t, n, lp, i, p in zip(tokens, self.wanted, logprobs, ids, tops, strict=True)
        ]


def _best(ids: list[int], logprobs: list[float], n: int) -> tuple[tuple[int, float], ...]:
    ranked = sorted(zip(ids, logprobs, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple(ranked[:n])


@dataclass(slots=True)
class _RowState:
    """Per-request arrays `[vocab]`; None where the request does not use them."""

    sampling: SamplingParams
    banned: tuple[int, ...]
    bias: mx.array | None
    in_prompt: mx.array | None
    counts: mx.array | None


@dataclass(slots=True)
class _Batch:
    """The rows' parameters side by side, rebuilt only when the rows change."""

    ids: tuple[str, ...]
    greedy: bool
    sorts: bool
    top_n: int | None
    wanted: list[int | None]
    temperature: mx.array
    top_k: mx.array
    top_p: mx.array
    min_p: mx.array
    is_greedy: mx.array
    bias: mx.array | None
    penalties: mx.array | None  # [3, rows, 1]: repetition, frequency, presence
    in_prompt: mx.array | None
    counts: mx.array | None


class Sampler:
    """Owned by the generation thread. Rows join with their history and leave by id."""

    def __init__(self, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self.vocab_size = vocab_size
        # Tokenizers of real models know ids above the model's logits; as an index such an id corrupts memory.
        self._eos = tuple(i for i in eos_token_ids if 0 <= i < vocab_size)
        self._rows: dict[str, _RowState] = {}
        self._batch: _Batch | None = None

    def join(self, join: Join) -> None:
        """Raises ValueError for a token id outside the vocabulary: the device checks no index."""
        p = join.sampling
        self._check_ids(p.logit_bias)
        self._check_ids(p.stop_token_ids)
        bias = None
        if p.logit_bias:
            bias = self._dense(list(p.logit_bias), list(p.logit_bias.values()))
        in_prompt = counts = None
        if p.repetition_penalty != 1.0 or p.frequency_penalty or p.presence_penalty:
            self._check_ids(join.history)
            in_prompt = self._dense(join.history[: join.num_prompt_tokens]) > 0
            counts = self._dense(join.history[join.num_prompt_tokens :])
        banned = tuple(sorted({*(() if p.ignore_eos else self._eos), *p.stop_token_ids}))
        self._rows[join.request_id] = _RowState(p, banned, bias, in_prompt, counts)

    def leave(self, request_id: str) -> None:
        """Forget a row, and the batch it was in: the id may come back as another request."""
        self._rows.pop(request_id, None)
        if self._batch is not None and request_id in self._batch.ids:
            self._save_counts()
            self._batch = None

    def reset(self) -> None:
        """Forget every row."""
        self._rows.clear()
        self._batch = None

    def _check_ids(self, ids: Iterable[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"token id {token_id} is outside the vocabulary 0..{self.vocab_size - 1}")

    def _dense(self, ids: Sequence[int], values: list[float] | None = None) -> mx.array:
        """`float32[vocab]` with the values (default 1 each) added up at the ids."""
        dense = mx.zeros((self.vocab_size,), dtype=mx.float32)
        if not ids:
            return dense
        added = mx.array(values if values is not None else [1.0] * len(ids), dtype=mx.float32)
        return dense.at[mx.array(list(ids), dtype=mx.int32)].add(added)

    def sample(self, logits: mx.array, specs: Sequence[SampleSpec]) -> SampleOutput:
        """logits `[rows, vocab]` -> one token per spec. Lazy; advances the rows' penalty counts."""
        batch = self._batch_of(specs)
        raw = logits.astype(mx.float32)
        adjusted = self._penalise(self._ban_ends(raw, specs), batch)
        tokens = mx.argmax(adjusted, axis=-1).astype(mx.int32)
        if not batch.greedy:
            filtered = _filter(adjusted / batch.temperature, batch)
            drawn = _draw(filtered, _keys(specs, self._rows))
            # A parallel cumulative sum may round so that an excluded token is met; the likeliest is never excluded.
            excluded = mx.take_along_axis(filtered, drawn[:, None], axis=-1)[:, 0] == -mx.inf
            tokens = mx.where(batch.is_greedy | excluded, tokens, drawn)
        if batch.counts is not None:
            rows = mx.arange(len(specs), dtype=mx.int32)
            batch.counts = batch.counts.at[rows, tokens].add(1.0)
        output = SampleOutput(tokens, batch.wanted)
        if batch.top_n is not None:
            _add_logprobs(output, raw, batch.top_n)
        return output

    def state(self) -> list[mx.array]:
        """Arrays that the step must evaluate, so that no graph grows over steps."""
        batch = self._batch
        return [batch.counts] if batch is not None and batch.counts is not None else []

    def _ban_ends(self, logits: mx.array, specs: Sequence[SampleSpec]) -> mx.array:
        cells = [
            (i, token_id)
            for i, spec in enumerate(specs)
            if spec.num_generated < self._rows[spec.request_id].sampling.min_tokens
            for token_id in self._rows[spec.request_id].banned
        ]
        if not cells:
            return logits
        rows, ids = (mx.array(list(c), dtype=mx.int32) for c in zip(*cells, strict=True))
        return logits.at[rows, ids].add(-mx.inf)

    def _penalise(self, logits: mx.array, batch: _Batch) -> mx.array:
        if batch.bias is not None:
            logits = logits + batch.bias
        if batch.counts is None or batch.in_prompt is None or batch.penalties is None:
            return logits
        repetition, frequency, presence = batch.penalties
        seen = batch.in_prompt | (batch.counts > 0)
        repeated = mx.where(logits > 0, logits / repetition, logits * repetition)
        logits = mx.where(seen, repeated, logits)
        return logits - frequency * batch.counts - presence * (batch.counts > 0)

    def _batch_of(self, specs: Sequence[SampleSpec]) -> _Batch:
        ids = tuple(spec.request_id for spec in specs)
        if self._batch is None or self._batch.ids != ids:
            self._save_counts()
            self._batch = self._new_batch(ids)
        return self._batch

    def _save_counts(self) -> None:
        """Give the rows of the old batch their counts back."""
        if self._batch is not None and self._batch.counts is not None:
            for i, request_id in enumerate(self._batch.ids):
                row = self._rows.get(request_id)
                if row is not None and row.counts is not None:
                    row.counts = self._batch.counts[i]

    def _new_batch(self, ids: tuple[str, ...]) -> _Batch:
        rows = [self._rows[i] for i in ids]
        params = [row.sampling for row in rows]
        greedy = [p.temperature < GREEDY_BELOW for p in params]
        wanted = [p.top_logprobs for p in params]
        penalised = any(row.counts is not None for row in rows)
        biased = any(row.bias is not None for row in rows)

        def column(values: Iterable[float], dtype: mx.Dtype = mx.float32) -> mx.array:
            return mx.array(list(values), dtype=dtype)[:, None]

        zeros = mx.zeros((self.vocab_size,), dtype=mx.float32)
        return _Batch(
            ids=ids,
            greedy=all(greedy),
            sorts=any((p.top_k or p.top_p < 1.0) and not g for p, g in zip(params, greedy, strict=True)),
            top_n=max((n for n in wanted if n is not None), default=None),
            wanted=wanted,
            temperature=column(1.0 if g else p.temperature for p, g in zip(params, greedy, strict=True)),
            top_k=column((min(p.top_k or self.vocab_size, self.vocab_size) for p in params), mx.int32),
            top_p=column(p.top_p for p in params),
            min_p=column(p.min_p for p in params),
            is_greedy=mx.array(greedy),
            bias=mx.stack([zeros if r.bias is None else r.bias for r in rows]) if biased else None,
            penalties=mx.stack(
                [
                    column(p.repetition_penalty for p in params),
                    column(p.frequency_penalty for p in params),
                    column(p.presence_penalty for p in params),
                ]
            )
            if penalised
            else None,
            in_prompt=mx.stack([zeros > 0 if r.in_prompt is None else r.in_prompt for r in rows])
            if penalised
            else None,
            counts=mx.stack([zeros if r.counts is None else r.counts for r in rows]) if penalised else None,
        )


def _filter(scaled: mx.array, batch: _Batch) -> mx.array:
    """Set what top-k, top-p and min-p exclude to -inf. The most likely token always stays."""
    floor = mx.max(scaled, axis=-1, keepdims=True) + mx.log(batch.min_p)
    if batch.sorts:
        ranked = -mx.sort(-scaled, axis=-1)
        rank = mx.arange(scaled.shape[-1], dtype=mx.int32)[None]
        ranked = mx.where(rank < batch.top_k, ranked, -mx.inf)
        p = mx.softmax(ranked, axis=-1)
        before = mx.cumsum(p, axis=-1) - p
        kept = mx.sum((before < batch.top_p) & (rank < batch.top_k), axis=-1, keepdims=True)
        kept = mx.maximum(kept, 1)
        floor = mx.maximum(floor, mx.take_along_axis(ranked, kept - 1, axis=-1))
    return mx.where(scaled >= floor, scaled, -mx.inf)


def _draw(logits: mx.array, keys: mx.array) -> mx.array:
    """One token per row of `[rows, vocab]`: the first whose cumulative probability passes the row's number."""
    cumulative = mx.cumsum(mx.softmax(logits, axis=-1), axis=-1)
    uniform = mx.vmap(lambda key: mx.random.uniform(key=key))(keys)[:, None]
    point = uniform * _BELOW_ONE * cumulative[:, -1:]
    return mx.sum(cumulative <= point, axis=-1).astype(mx.int32)


def _keys(specs: Sequence[SampleSpec], rows: dict[str, _RowState]) -> mx.array:
    """`uint32[rows, 2]`: a well-mixed 64-bit function of (seed, position)."""
    mixed = [_splitmix64(_splitmix64(rows[s.request_id].sampling.seed) ^ s.position) for s in specs]
    return mx.array([[m >> 32, m & 0xFFFFFFFF] for m in mixed], dtype=mx.uint32)


def _splitmix64(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _add_logprobs(output: SampleOutput, raw: mx.array, top_n: int) -> None:
    total = mx.logsumexp(raw, axis=-1, keepdims=True)
    output.logprob = (mx.take_along_axis(raw, output.tokens[:, None], axis=-1) - total)[:, 0]
    if top_n:
        n = min(top_n, raw.shape[-1])
        ids = mx.argpartition(-raw, n - 1, axis=-1)[:, :n]
        output.top_ids = ids
        output.top_logprobs = mx.take_along_axis(raw, ids, axis=-1) - total
