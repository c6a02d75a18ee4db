"""A tenant with a flood does not make the others wait for it."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_server.core.messages import GenerateRequest, Priority
from mlx_server.services.batching.fair_share import FairShare
from tests.fakes.lockstep import Lockstep, lockstep, prompt_of, request

STEP_S = 0.05


def of(tenant: str, name: str, **kind: int) -> GenerateRequest:
    made = request(name, prompt_of(kind.get("prompt", 40), zlib.crc32(name.encode())), kind.get("max_tokens", 10))
    return GenerateRequest(**{f: getattr(made, f) for f in made.__struct_fields__} | {"tenant": tenant})


@dataclass
class World:
    """An engine whose steps take `STEP_S` of the clock; when each request came and ended."""

    engine: Lockstep
    came: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def add(self, message: GenerateRequest) -> None:
        self.engine.add(message)
        self.came[message.request_id] = self.engine.now

    def step(self) -> None:
        self.engine.step_alone()
        self.engine.now += STEP_S
        for name in self.engine.ends:
            self.ended.setdefault(name, self.engine.now)

    def wait_s(self, name: str) -> float:
        return self.ended[name] - self.came[name]


def world() -> World:
    made = lockstep(256, max_num_seqs=2, max_num_batched_tokens=128, max_queue=1000, max_queue_per_tenant=1000)
    made.runner._duration_s = lambda plan: STEP_S
    return World(made)


def warm(w: World) -> None:
    """Let the engine learn what tokens cost."""
    for i in range(20):
        w.add(of("", f"warm{i}"))
    while len(w.ended) < 20:
        w.step()


@pytest.mark.parametrize("tenants", [("flood", "calm"), ("", "")])
def test_a_flood_does_not_delay_another_tenant(tenants: tuple[str, str]) -> None:
    """With shares a calm tenant waits for about one request; without, for the whole flood."""
    flood, calm = tenants
    w = world()
    warm(w)
    for i in range(200):
        w.add(of(flood, f"flood{i}"))
    for i in range(10):
        for _ in range(12):
            w.step()
        w.add(of(calm, f"calm{i}"))
    while len(w.ended) < 230:
        w.step()
    waits = [w.wait_s(f"calm{i}") for i in range(10)]
    alone_s = 11 * STEP_S
    if calm:
        assert max(waits) < 4 * alone_s, waits
    else:
        assert min(waits) > 10 * alone_s, waits
    w.engine.finish()
    w.engine.check_over()


def test_floods_do_not_delay_a_newcomer_however_many_they_are() -> None:
    """The queue's time is not the clock's: four floods are served at a quarter of their pace."""
    w = world()
    warm(w)
    for i in range(60):
        for tenant in "abcd":
            w.add(of(tenant, f"{tenant}{i}"))
    for i in range(5):
        for _ in range(100):
            w.step()
        w.add(of("calm", f"calm{i}"))
    while not all(f"calm{i}" in w.ended for i in range(5)):
        w.step()
    assert max(w.wait_s(f"calm{i}") for i in range(5)) < 4 * 11 * STEP_S


def test_two_floods_get_equal_shares() -> None:
    w = world()
    warm(w)
    for i in range(60):
        w.add(of("a", f"a{i}"))
    for i in range(60):
        w.add(of("b", f"b{i}"))
    while sum(name[0] in "ab" for name in w.ended) < 60:
        w.step()
    first = sorted(w.ended, key=lambda n: w.ended[n])
    served = [name[0] for name in first if name[0] in "ab"][:60]
    assert abs(served.count("a") - served.count("b")) <= 8, served


def test_shares_are_of_tokens_not_of_requests() -> None:
    w = world()
    warm(w)
    for i in range(40):
        w.add(of("long", f"long{i}", prompt=100, max_tokens=30))
        w.add(of("short", f"short{i}", prompt=20, max_tokens=6))
    while sum(name.startswith("short") for name in w.ended) < 40:
        w.step()
    assert sum(name.startswith("long") for name in w.ended) < 20


def test_a_tenant_alone_is_served_in_order() -> None:
    w = world()
    warm(w)
    names = [f"a{i}" for i in range(30)]
    for name in names:
        w.add(of("a", name))
    while len(w.ended) < 50:
        w.step()
    assert sorted(names, key=lambda n: (w.ended[n], names.index(n))) == names


def test_a_cancelled_flood_costs_its_tenant_nothing() -> None:
    w = world()
    warm(w)
    for i in range(100):
        w.add(of("a", f"a{i}"))
    for i in range(100):
        w.engine.cancel(f"a{i}")
    w.add(of("a", "after"))
    w.add(of("b", "b"))
    while "after" not in w.ended:
        w.step()
    assert w.wait_s("after") < 1.0


charges = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(Priority),
        st.floats(0, 3),
        st.integers(1, 2000),
        st.integers(1, 500),
    ),
    max_size=200,
)


@settings(max_examples=150, deadline=None)
@given(charges, st.randoms())
def test_starts_are_never_before_the_virtual_time_which_never_goes_back(
    requests: list[tuple[str, Priority, float, int, int]], rng: random.Random
) -> None:
    """So nobody starves: a start is fixed, and whoever comes later starts no earlier than what was served last."""
    shares, now, virtual = FairShare(), 0.0, 0.0
    shares.observe_step(100, 1.0)
    last: dict[tuple[str, Priority], float] = {}
    waiting = []
    for tenant, priority, later, prompt, max_tokens in requests:
        now += later
        charge = shares.charge(tenant, priority, now, prompt, max_tokens, is_busy=bool(waiting))
        assert charge.start_s >= (virtual if waiting else max(virtual, now))
        assert charge.start_s >= last.get((tenant, priority), 0.0)
        last[tenant, priority] = charge.start_s
        waiting.append((charge, tenant, priority, prompt + max_tokens))
        while waiting and rng.random() < 0.5:
            waiting.sort()
            charge, *whose, tokens = waiting.pop(0)
            shares.served(charge)
            virtual = max(virtual, charge.start_s)
            last.pop((whose[0], whose[1]), None)
            shares.settle(whose[0], whose[1], charge, rng.randrange(tokens))
        shares.observe_step(rng.randrange(500), rng.random())
        shares.observe_answer(rng.randrange(300))


def test_without_a_tenant_the_arrival_counts() -> None:
    shares = FairShare()
    shares.observe_step(10, 1.0)
    starts = [shares.charge("", Priority.NORMAL, 5.0, 1000, 1000, is_busy=False).start_s for _ in range(3)]
    assert starts == [5.0] * 3


def test_a_tenants_important_request_does_not_wait_for_its_flood_below() -> None:
    shares = FairShare()
    shares.observe_step(10, 1.0)
    for _ in range(50):
        shares.charge("a", Priority.LOW, 0.0, 1000, 100, is_busy=True)
    assert shares.charge("a", Priority.NORMAL, 1.0, 10, 10, is_busy=True).start_s == 0.0
    assert shares.charge("a", Priority.LOW, 1.0, 10, 10, is_busy=True).start_s > 50.0
