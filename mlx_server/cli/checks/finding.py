"""`Finding`: one thing that the doctor has looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """fix: what to do about it, a sentence; "" where there is nothing to do.

    level: 'fail' is what keeps the daemon from serving, 'warn' what makes it worse than it could be.
    """

    subject: str
    level: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""
