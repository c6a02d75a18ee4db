"""A chat request to the engine's sampling parameters."""

from __future__ import annotations

import secrets
from typing import Any

from mlx_server.api.openai.types import MAX_BIASES, MAX_STOP_CHARS, MAX_STOPS, ChatRequest, must_be
from mlx_server.chat.defaults import SamplingDefaults
from mlx_server.core.errors import RequestError
from mlx_server.core.messages import Priority, SamplingParams

_MASK64 = (1 << 64) - 1
_GREEDY_BELOW = 1e-4
"""Logits divided by less than this overflow; the most likely token has all the probability long before."""


def sampling_params(
    request: ChatRequest, defaults: SamplingDefaults, vocab_size: int, room: int, default_max_tokens: int
) -> SamplingParams:
    """Parameters of the first choice, but for the seed. room: tokens that the context leaves, at least 1."""
    max_tokens = _max_tokens(request, room, default_max_tokens)
    temperature = _first(request.temperature, defaults.temperature)
    top_p = _first(request.top_p, defaults.top_p)
    top_k = max(0, _first(request.top_k, defaults.top_k))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(request.min_tokens, max_tokens),
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        # A nucleus of nothing still holds the most likely token.
        top_p=1.0 if top_p == 0 else top_p,
        top_k=1 if top_p == 0 else 0 if top_k >= vocab_size else top_k,
        min_p=_first(request.min_p, defaults.min_p),
        repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=_logit_bias(request.logit_bias, vocab_size),
        top_logprobs=_top_logprobs(request),
        ignore_eos=request.ignore_eos,
    )


def choice_seed(seed: int, index: int) -> int:
    """Seed of choice `index`; that of the first is the seed itself, modulo 2^64.

    SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014).
    """
    if index == 0:
        return seed & _MASK64
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def request_seed(request: ChatRequest, configured: int | None) -> int:
    """The request's seed, else the configured one, else a random one."""
    if request.seed is not None:
        return request.seed
    return secrets.randbits(64) if configured is None else configured


def stop_strings(stop: Any) -> tuple[str, ...]:
    """The `stop` of a request. Raises `RequestError` naming the entry that is not legal."""
    if isinstance(stop, str):
        return (_stop(stop, "stop"),)
    if not isinstance(stop, (list, tuple)) or len(stop) > MAX_STOPS:
        raise must_be("stop", f"a string or a list of at most {MAX_STOPS} strings", stop)
    return tuple(_stop(item, f"stop[{index}]") for index, item in enumerate(stop))


def request_priority(asked: str | int | None, tier: Priority, floor: Priority = Priority.HIGH) -> Priority:
    """The least important of what was asked for, the caller's tier and the endpoint's floor: a client may only lower.

    asked: a word, or a number as vLLM has it (0 is normal, above it low); None asks for nothing.
    """
    if isinstance(asked, int):
        asked = "low" if asked > 0 else "normal" if asked == 0 else "high"
    wish = Priority.HIGH if asked is None else Priority[asked.upper()]
    return max(wish, tier, floor)


def _first(given: Any, default: Any) -> Any:
    return default if given is None else given


def _max_tokens(request: ChatRequest, room: int, default: int) -> int:
    asked = _first(request.max_completion_tokens, request.max_tokens)
    if asked is not None and request.min_tokens > asked:
        raise must_be("min_tokens", f"at most max_tokens ({asked})", request.min_tokens)
    return min(room, default if asked is None else asked)


def _top_logprobs(request: ChatRequest) -> int | None:
    if not request.logprobs:
        if request.top_logprobs:
            message = "'top_logprobs' needs 'logprobs' to be true"
            raise RequestError(message, "top_logprobs", "invalid_value")
        return None
    return request.top_logprobs or 0


def _stop(value: Any, field: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_STOP_CHARS:
        raise must_be(field, f"a string of 1 to {MAX_STOP_CHARS} characters", value)
    return value


def _logit_bias(bias: dict[str, Any], vocab_size: int) -> dict[int, float]:
    if len(bias) > MAX_BIASES:
        raise must_be("logit_bias", f"an object of at most {MAX_BIASES} entries", bias)
    result = {}
    for key, value in bias.items():
        token_id = int(key) if key.isascii() and key.isdigit() and len(key) <= 12 else -1
        if not 0 <= token_id < vocab_size:
            raise must_be("logit_bias", f"keyed by token ids from 0 to {vocab_size - 1}", key)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not -100 <= value <= 100:
            raise must_be(f"logit_bias.{token_id}", "a number from -100 to 100", value)
        result[token_id] = float(value)
    return result
