"""The last requests that failed: when, how and where. Never their text, nor that of the error."""

from __future__ import annotations

import time
from collections import deque

import msgspec

KEPT = 50
_LONGEST_PATH = 120


class RecentError(msgspec.Struct, frozen=True, kw_only=True):
    """status: 200 where the failure came after the answer had begun. code: the API's, else the error's kind."""

    time_s: float
    status: int
    code: str
    method: str
    path: str
    request_id: str
    key_id: str


class RecentErrors:
    """The last `KEPT`, oldest first. Owned by the event loop."""

    def __init__(self) -> None:
        self._kept: deque[RecentError] = deque(maxlen=KEPT)

    def note(self, status: int, code: str, method: str, path: str, request_id: str, key_id: str) -> None:
        self._kept.append(
            RecentError(
                time_s=time.time(),
                status=status,
                code=code,
                method=method[:16],
                path=path[:_LONGEST_PATH],
                request_id=request_id,
                key_id=key_id,
            )
        )

    def facts(self) -> tuple[RecentError, ...]:
        return tuple(self._kept)
