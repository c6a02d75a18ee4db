"""When which fault comes. Two lanes: faults of the engine, one after the other, and faults of clients beside them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

ENGINE_RATES: Mapping[str, float] = {
    "kill": 4.2,
    "stop": 0.25,
    "abort": 0.4,
    "segv": 0.4,
    "hang": 0.5,
    "poison_abort": 0.5,
    "poison_raise": 1.5,
    "raise_launch": 1.5,
    "raise_finish": 1.5,
    "malloc": 1.5,
    "engine_clock": 0.6,
}
"""A minute."""

CLIENT_RATES: Mapping[str, float] = {
    "disconnect_prefill": 3.0,
    "disconnect_stream": 5.0,
    "disconnect_whole": 2.0,
    "slow_pause": 1.5,
    "slow_forever": 0.7,
    "malformed": 8.0,
    "half_open": 2.0,
    "burst": 0.4,
    "daemon_clock": 0.6,
}
"""A minute."""

SOAK_RATES: Mapping[str, float] = {"disconnect_prefill": 1.0, "disconnect_stream": 2.0, "disconnect_whole": 1.0}
"""A minute; the soak has no other faults."""


@dataclass(slots=True, frozen=True)
class Planned:
    """at_s: since the start of the lane. seed: of whatever the fault leaves open."""

    at_s: float
    kind: str
    seed: int


def plan(seed: int, lane: str, duration_s: float, rates: Mapping[str, float]) -> list[Planned]:
    """Every kind as often as its rate says, at least once where the rate is above 0, evenly spread in random order."""
    rng = random.Random(f"{lane} of {seed}")
    kinds = [kind for kind, rate in rates.items() for _ in range(math.ceil(rate * duration_s / 60))]
    rng.shuffle(kinds)
    gap_s = duration_s / max(1, len(kinds))
    return [Planned((i + rng.random()) * gap_s, kind, rng.randrange(1 << 32)) for i, kind in enumerate(kinds)]
