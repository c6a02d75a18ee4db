"""Predicts how long a step will take, so that a prefill chunk can be sized by time instead of by count.

The model has one learned rate: seconds per unit of prefill, where n tokens behind a context of c cost
n * (1 + (c + n/2) / CONTEXT_UNIT) units (the projections are linear in n, the attention in n * c). The time
of a step without prefill is learned apart and subtracted. Both are exponential averages, so they follow
the machine; they are fed by `StepResult.duration_s`, so the scheduler stays deterministic.
"""

from __future__ import annotations

import math

CONTEXT_UNIT = 4096.0
"""Context at which attention costs a token as much as the rest of the model (chosen by guess; the rate adapts)."""

_WEIGHT = 0.3
_FIRST_UNITS = 128.0


def prefill_units(num_tokens: int, context: int) -> float:
    """Cost of a chunk of `num_tokens` that starts at position `context`."""
    return num_tokens * (1.0 + (context + num_tokens / 2) / CONTEXT_UNIT)


def tokens_within(units: float, context: int) -> int:
    """The longest chunk at `context` that costs at most `units`: the inverse of `prefill_units`."""
    if units <= 0:
        return 0
    a, b = 0.5 / CONTEXT_UNIT, 1.0 + context / CONTEXT_UNIT
    return int((math.sqrt(b * b + 4 * a * units) - b) / (2 * a))


class StepTimePredictor:
    """Learns from finished steps; answers how much prefill fits into a time."""

    def __init__(self) -> None:
        self._decode_s = 0.0
        self._unit_s: float | None = None

    def observe(self, duration_s: float, units: float) -> None:
        """A step with `units` of prefill (0: decodes only) took `duration_s`; 0 is below what the clock can tell."""
        if duration_s <= 0:
            return
        if units <= 0:
            self._decode_s += (duration_s - self._decode_s) * _WEIGHT
            return
        sample = max(duration_s - self._decode_s, 0.1 * duration_s) / units
        self._unit_s = sample if self._unit_s is None else self._unit_s + (sample - self._unit_s) * _WEIGHT

    def units_within(self, duration_s: float, *, decoding: bool) -> float:
        """Units of prefill that a step of `duration_s` is predicted to hold beside its decodes."""
        if self._unit_s is None:
            return _FIRST_UNITS if decoding else 4 * _FIRST_UNITS
        return max(duration_s - (self._decode_s if decoding else 0.0), 0.0) / self._unit_s
