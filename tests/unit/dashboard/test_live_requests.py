"""Requests are listed while they are answered, and end when somebody ends them."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest
from prometheus_client import Histogram

from mlx_server.api.live.histogram import histogram_facts
from mlx_server.api.live.live_requests import CancelledRequestError, LiveRequest, LiveRequests
from mlx_server.api.live.recent_errors import KEPT, RecentErrors
from mlx_server.chat.generation import TextDelta
from mlx_server.core.messages import Priority


def request() -> LiveRequest:
    return LiveRequest(
        id="chatcmpl-1",
        key_id="",
        priority=Priority.NORMAL,
        model="small",
        prompt_tokens=3,
        choices=1,
        started_s=time.perf_counter(),
    )


class Source:
    """Deltas on demand, and what became of their iterator."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[int] = asyncio.Queue()
        self.waits = asyncio.Event()
        self.closed = False

    async def deltas(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        try:
            while True:
                self.waits.set()
                tokens = await self.coming.get()
                self.waits.clear()
                yield 0, TextDelta("x", (), None, tokens, 2, 0.0)
        finally:
            self.closed = True


async def test_a_request_is_listed_from_the_first_pull_to_the_end() -> None:
    live, source, one = LiveRequests(), Source(), request()
    tracked = live.track(one, source.deltas())
    assert live.all() == []
    source.coming.put_nowait(1)
    await anext(tracked)
    assert live.get(one.id) is one
    assert (one.generated, one.cached) == ({0: 1}, {0: 2})
    await tracked.aclose()
    assert live.all() == []
    assert source.closed


async def test_the_first_delta_with_a_token_begins_the_decoding() -> None:
    live, source, one = LiveRequests(), Source(), request()
    tracked = live.track(one, source.deltas())
    source.coming.put_nowait(0)
    await anext(tracked)
    assert one.first_token_s is None
    source.coming.put_nowait(1)
    await anext(tracked)
    assert one.first_token_s is not None
    await tracked.aclose()


async def test_cancelling_ends_a_request_that_waits_for_its_next_token() -> None:
    live, source, one = LiveRequests(), Source(), request()
    tracked = live.track(one, source.deltas())
    pull = asyncio.ensure_future(anext(tracked))
    await source.waits.wait()
    live.cancel(one)
    with pytest.raises(CancelledRequestError):
        await pull
    assert source.closed
    assert live.all() == []


async def test_cancelling_between_two_pulls_ends_it_at_the_next() -> None:
    live, source, one = LiveRequests(), Source(), request()
    tracked = live.track(one, source.deltas())
    source.coming.put_nowait(1)
    await anext(tracked)
    live.cancel(one)
    with pytest.raises(CancelledRequestError):
        await anext(tracked)
    assert source.closed


async def test_a_client_that_goes_away_is_no_cancelled_request() -> None:
    live, source = LiveRequests(), Source()
    pull = asyncio.ensure_future(anext(live.track(request(), source.deltas())))
    await source.waits.wait()
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert source.closed
    assert live.all() == []


def test_buckets_count_what_lies_between_their_ends() -> None:
    histogram = Histogram("latency_seconds", "A latency.", registry=None, buckets=(0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds)
    facts = histogram_facts(histogram)
    assert facts.bounds_s == (0.1, 1.0)
    assert facts.counts == (2, 1, 1)
    assert facts.sum_s == pytest.approx(7.65)


def test_only_the_last_errors_are_kept_and_paths_are_cut() -> None:
    errors = RecentErrors()
    for number in range(KEPT + 5):
        errors.note(404, "not_found", "GET", "/" + "x" * 500, f"req-{number}", "")
    kept = errors.facts()
    assert len(kept) == KEPT
    assert kept[0].request_id == "req-5"
    assert len(kept[0].path) == 120
