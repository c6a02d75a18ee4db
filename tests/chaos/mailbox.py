"""How an order for a fault reaches the engine's process: one file in a folder, taken by whoever executes the next step.

No thread, no socket and no state in the engine: an order survives its death, and exactly one engine takes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "MLX_CHAOS_MAILBOX"
"""Environment variable with the folder; only the processes of this package read it."""
_POLL_S = 0.02


class Mailbox:
    """One order at a time. The harness puts, the executor takes."""

    def __init__(self, folder: Path) -> None:
        self._order = folder / "order.json"
        self._draft = folder / "draft.json"
        self._taken = folder / f"taken.{os.getpid()}.json"

    @classmethod
    def from_environment(cls) -> Mailbox:
        return cls(Path(os.environ[FOLDER_VARIABLE]))

    def put(self, order: dict[str, Any]) -> None:
        self._draft.write_text(json.dumps(order))
        self._draft.replace(self._order)

    def take(self) -> dict[str, Any] | None:
        """The order, if there is one. It is gone before it is carried out."""
        try:
            self._order.replace(self._taken)
        except FileNotFoundError:
            return None
        order: dict[str, Any] = json.loads(self._taken.read_text())
        self._taken.unlink()
        return order

    async def wait_taken(self, timeout_s: float) -> bool:
        """Whether the order was taken in time; an order that was not is withdrawn."""
        deadline = time.monotonic() + timeout_s
        while self._order.exists():
            if time.monotonic() > deadline:
                self._order.unlink(missing_ok=True)
                return False
            await asyncio.sleep(_POLL_S)
        return True
