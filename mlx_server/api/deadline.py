"""How long a request may take, from its arrival to its last byte."""

from __future__ import annotations

import asyncio
import math

from starlette.requests import Request

from mlx_server.chat.generation import Deadline
from mlx_server.core.errors import RequestError

HEADER = "x-request-timeout"


def request_deadline(request: Request, longest_s: float) -> Deadline:
    """Counted from now; the header may ask for less than `longest_s`. Raises `RequestError` for what is no time."""
    timeout_s = longest_s
    given = request.headers.get(HEADER)
    if given is not None:
        timeout_s = min(longest_s, _seconds(given))
    return Deadline(timeout_s, asyncio.get_running_loop().time() + timeout_s)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:  # also NaN
        raise RequestError(f"{HEADER} must be a number of seconds above 0, not {text[:40]!r}", field=HEADER)
    return value
