"""Blame against a small world in which it is known who breaks what."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_server.core.blame import MAX_FAILURES, Blame

MOST_FAILURES = 5  # of one request, as the docstring of blame.py has it


class World:
    """Requests that compute some positions at a time, all that run together. What fails starts again.

    length: of each request. poison: the position from which every attempt of a request fails.
    guilty_last: of those that may start, the poisoned do so after all others.
    """

    def __init__(
        self,
        rng: random.Random,
        length: dict[str, int],
        poison: dict[str, int],
        transients: int,
        *,
        guilty_last: bool,
    ) -> None:
        self.blame = Blame()
        self.rng = rng
        self.length = length
        self.poison = poison
        self.transients = transients
        self.guilty_last = guilty_last
        self.done = dict.fromkeys(length, 0)
        self.waiting = list(length)
        self.running: list[str] = []
        self.culprits: list[str] = []
        self.failures: Counter[str] = Counter()  # by the poisoned that were in them
        self.failed_steps = 0
        self.hit_alone: Counter[str] = Counter()  # transient failures

    def run(self) -> None:
        for _ in range(3_000):
            if not self.waiting and not self.running:
                return
            self.start_some()
            assert self.running, "nobody may start and nobody runs"
            self.step()
            if self.running and self.rng.random() < 0.1:
                self.preempt(self.rng.choice(self.running))
        raise AssertionError("no end")

    def start_some(self) -> None:
        self.rng.shuffle(self.waiting)
        if self.guilty_last:
            self.waiting.sort(key=self.poison.__contains__)
        must = not self.running
        for request in list(self.waiting):
            if self.blame.may_start(request) and (must or self.rng.random() < 0.7):
                must = False
                self.waiting.remove(request)
                self.running.append(request)
                self.done[request] = self.rng.randrange(self.done[request] // 2, self.done[request] + 1)
                self.blame.started(request)

    def preempt(self, request: str) -> None:
        self.running.remove(request)
        self.waiting.append(request)
        self.blame.stopped(request)

    def step(self) -> None:
        inside = [r for r in self.running if self.rng.random() < 0.8] or self.running[:1]
        reached = {r: min(self.done[r] + self.rng.randrange(1, 20), self.length[r]) for r in inside}
        guilty = [r for r in inside if reached[r] >= self.poison.get(r, 10**9)]
        transient = not guilty and self.transients > 0 and self.rng.random() < 0.1
        if guilty or transient:
            self.fail(reached, guilty)
            return
        for request in inside:
            self.done[request] = reached[request]
            self.blame.progressed(request, reached[request])
            if reached[request] == self.length[request]:
                self.running.remove(request)
                self.blame.forget(request)

    def fail(self, reached: dict[str, int], guilty: list[str]) -> None:
        self.failed_steps += 1
        self.failures.update(guilty)
        if not guilty:
            self.transients -= 1
            if len(reached) == 1:
                self.hit_alone.update(reached)
        culprit = self.blame.failed(reached)
        self.waiting += self.running
        self.running = []
        if culprit is not None:
            self.waiting.remove(culprit)
            self.culprits.append(culprit)


@st.composite
def worlds(draw: st.DrawFn, transients: int = 0) -> World:
    """A few requests, some of them poisoned."""
    length = {f"r{i}": n for i, n in enumerate(draw(st.lists(st.integers(1, 200), min_size=1, max_size=12)))}
    poisoned = draw(st.sets(st.sampled_from(sorted(length)), max_size=5))
    poison = {r: draw(st.integers(1, length[r])) for r in sorted(poisoned)}
    rng = random.Random(draw(st.integers(0, 10**6)))
    return World(rng, length, poison, transients, guilty_last=draw(st.booleans()))


@given(worlds())
@settings(deadline=None, derandomize=True, max_examples=400)
def test_whoever_always_fails_is_found_in_five_failures(world: World) -> None:
    world.run()
    assert sorted(world.culprits) == sorted(world.poison)
    assert max(world.failures.values(), default=0) <= MOST_FAILURES
    assert world.failed_steps <= MOST_FAILURES * len(world.poison)


@given(worlds(transients=10))
@settings(deadline=None, derandomize=True, max_examples=400)
def test_an_innocent_request_is_never_the_culprit(world: World) -> None:
    """But for one that failures without a cause have hit twice with nothing else in the step."""
    world.run()
    assert set(world.culprits) >= set(world.poison)
    for request in set(world.culprits) - set(world.poison):
        assert world.hit_alone[request] >= MAX_FAILURES


@given(worlds(transients=10))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_nothing_is_remembered_of_those_that_have_ended(world: World) -> None:
    world.run()
    assert not any((world.blame.in_doubt, world.blame._goal, world.blame._alone, world.blame._suspects))
    assert world.blame.candidates is None
