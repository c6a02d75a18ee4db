"""Fair shares of the engine for tenants that wait: start-time fair queueing (P. Goyal, H. M. Vin, H. Cheng, SIGCOMM
1996) in units of the engine's time.

A tenant's request ranks as if it had arrived when the tenant's earlier ones, served one after another, would be done.
So a flood ranks from now into the future, and another tenant's request that arrives now ranks before what is left of
it. A rank is fixed for life, hence nobody starves: newcomers never rank before their arrival.
"""

from __future__ import annotations

from typing import NamedTuple

from mlx_server.core.messages import Priority

_MEMORY = 0.05
"""Weight of the newest observation in the moving averages (chosen by guess)."""

_MAX_CLOCKS = 1024  # of tenants and levels; those that are in the past say nothing and are dropped


class Charge(NamedTuple):
    """rank_s: the time as whose arrival a request ranks, not before its arrival. tokens: what it is charged for."""

    rank_s: float
    tokens: float


class FairShare:
    """Learns what requests cost from the steps and from the requests that end. Requests without a tenant share
    nothing: they rank by their arrival.
    """

    def __init__(self) -> None:
        self._free_at_s: dict[tuple[str, Priority], float] = {}
        self._seconds_per_token = 0.0
        self._answer_tokens = 64.0

    def charge(self, tenant: str, priority: Priority, arrival_s: float, num_prompt: int, max_tokens: int) -> Charge:
        """The rank of a request, for which its tenant is charged.

        A tenant's request ranks behind its own ones of the same level or above, not behind those below.
        """
        if not tenant:
            return Charge(arrival_s, 0.0)
        levels = [level for level in Priority if level <= priority]
        start_s = max(arrival_s, *(self._free_at_s.get((tenant, level), arrival_s) for level in levels))
        if len(self._free_at_s) >= _MAX_CLOCKS:
            self._free_at_s = {clock: at_s for clock, at_s in self._free_at_s.items() if at_s > arrival_s}
        tokens = num_prompt + min(max_tokens, self._answer_tokens)
        self._free_at_s[tenant, priority] = start_s + tokens * self._seconds_per_token
        return Charge(start_s, tokens)

    def observe_step(self, num_tokens: int, duration_s: float) -> None:
        """A step has computed so many tokens of prompts and answers."""
        if num_tokens:
            self._seconds_per_token += _MEMORY * (duration_s / num_tokens - self._seconds_per_token)

    def observe_answer(self, num_tokens: int) -> None:
        """An answer has come to its end after so many tokens."""
        self._answer_tokens += _MEMORY * (num_tokens - self._answer_tokens)

    def settle(self, tenant: str, priority: Priority, charged_tokens: float, used_tokens: int) -> None:
        """A request has ended: what it was charged for and did not use goes back to its tenant, and the reverse."""
        clock = (tenant, priority)
        if clock in self._free_at_s:
            self._free_at_s[clock] -= (charged_tokens - used_tokens) * self._seconds_per_token
