"""How much one API key may ask for: requests at the same time, and requests a minute."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlx_server.services.keys import ApiKey

MINUTE_S = 60.0
_ROUNDING_S = 1e-6
BUSY_RETRY_S = 1
"""When a running answer ends is not known; whoever has too many tries again soon."""


@dataclass(slots=True, frozen=True)
class OverLimit:
    """Why a request is refused. retry_after_s: whole seconds, at least 1."""

    message: str
    retry_after_s: int


@dataclass(slots=True)
class _Use:
    """running: requests being answered. full_s: when the bucket will be full again, if nothing more is taken."""

    running: int
    full_s: float


class KeyLimits:
    """Counts the requests of every key. Times are seconds of a monotonic clock.

    The rate is a token bucket that holds a minute's worth: a burst of `per_minute` at once, then one every
    60 / `per_minute` seconds. A request that is refused costs nothing.
    """

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}

    def enter(self, key: ApiKey, now: float) -> OverLimit | None:
        """Count a request in, or say why not. One that is in leaves with `leave`."""
        use = self._uses.setdefault(key.id, _Use(0, now))
        if key.max_concurrent is not None and use.running >= key.max_concurrent:
            message = f"this API key may have {key.max_concurrent} requests answered at the same time, and has"
            return OverLimit(message, BUSY_RETRY_S)
        if key.per_minute is not None:
            full_s = max(now, use.full_s) + MINUTE_S / key.per_minute
            wait_s = full_s - now - MINUTE_S
            if wait_s > _ROUNDING_S:
                return OverLimit(f"this API key may send {key.per_minute} requests a minute", math.ceil(wait_s))
            use.full_s = full_s
        use.running += 1
        return None

    def leave(self, key: ApiKey) -> None:
        """The answer is complete, or will never be."""
        use = self._uses[key.id]
        if use.running < 1:
            raise RuntimeError(f"key {key.id} has no request to leave")
        use.running -= 1
