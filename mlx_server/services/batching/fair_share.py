"""Fair shares of the engine for tenants that wait: start-time fair queueing (P. Goyal, H. M. Vin, H. Cheng, SIGCOMM
1996) in units of the engine's time.

A tenant's request starts, for the queue, when the tenant's earlier ones, served one after another, would be done; a
tenant without any starts at the virtual time, which is the start of the request served last. So a flood starts from
now into the future, and another tenant's request ranks before what is left of it, however many floods there are. A
start is fixed for life and the virtual time never goes back, so nobody starves.
"""

from __future__ import annotations

from typing import NamedTuple

from mlx_server.core.messages import Priority

_MEMORY = 0.05
"""Weight of the newest observation in the moving averages (chosen by guess)."""

_MAX_CLOCKS = 1024  # of tenants and levels; those that are behind the virtual time say nothing and are dropped


class Charge(NamedTuple):
    """start_s: the time as whose arrival a request ranks. tokens: what its tenant was charged for it."""

    start_s: float = 0.0
    tokens: float = 0.0


class FairShare:
    """Learns what requests cost from the steps and from the requests that end. Requests without a tenant share
    nothing: they rank by their arrival.
    """

    def __init__(self) -> None:
        self._free_at_s: dict[tuple[str, Priority], float] = {}
        self._virtual_s = 0.0
        self._seconds_per_token = 0.0
        self._answer_tokens = 64.0

    def charge(
        self, tenant: str, priority: Priority, arrival_s: float, num_prompt: int, max_tokens: int, is_busy: bool
    ) -> Charge:
        """When a request starts, for which its tenant is charged. is_busy: whether requests of tenants wait.

        A tenant's request starts behind its own ones of the same level or above, not behind those below.
        """
        if not tenant:
            return Charge(arrival_s)
        if not is_busy:
            self._virtual_s = max(self._virtual_s, arrival_s)
        levels = [level for level in Priority if level <= priority]
        start_s = max(self._virtual_s, *(self._free_at_s.get((tenant, level), 0.0) for level in levels))
        if len(self._free_at_s) >= _MAX_CLOCKS:
            self._free_at_s = {clock: at_s for clock, at_s in self._free_at_s.items() if at_s > self._virtual_s}
        tokens = num_prompt + min(max_tokens, self._answer_tokens)
        self._free_at_s[tenant, priority] = start_s + tokens * self._seconds_per_token
        return Charge(start_s, tokens)

    def served(self, charge: Charge) -> None:
        """A request of a tenant has its first row: the virtual time moves on to its start."""
        self._virtual_s = max(self._virtual_s, charge.start_s)

    def observe_step(self, num_tokens: int, duration_s: float) -> None:
        """A step has computed so many tokens of prompts and answers."""
        if num_tokens:
            self._seconds_per_token += _MEMORY * (duration_s / num_tokens - self._seconds_per_token)

    def observe_answer(self, num_tokens: int) -> None:
        """An answer has come to its end after so many tokens."""
        self._answer_tokens += _MEMORY * (num_tokens - self._answer_tokens)

    def settle(self, tenant: str, priority: Priority, charge: Charge, used_tokens: int) -> None:
        """A request has ended: what it was charged for and did not use goes back to its tenant, and the reverse."""
        clock = (tenant, priority)
        if clock in self._free_at_s:
            self._free_at_s[clock] -= (charge.tokens - used_tokens) * self._seconds_per_token
