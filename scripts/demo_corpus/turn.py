"""One user message with its one right answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(slots=True)
class Turn:
    """What is asked, what is answered, and what is thought before it.

    `core` is the shortest form of the answer ("Paris"); None where there is no such form.
    `plain` says that a system prompt may restyle the answer (it is prose, not a copy or JSON).
    """

    user: str
    answer: str
    think: str
    core: str | None = None
    plain: bool = True


@dataclass(slots=True)
class ChatState:
    """What earlier turns of a chat have established."""

    memory: dict[str, str] = field(default_factory=dict)
    assistant_name: str | None = None
    last_user: str | None = None
