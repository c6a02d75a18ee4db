"""Several choices of one request, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from mlx_server.chat.generation import TextDelta


async def interleave(
    streams: Sequence[AsyncGenerator[TextDelta, None]],
) -> AsyncGenerator[tuple[int, TextDelta], None]:
    """(index of the stream, its delta). All start at once, and all are closed when one fails."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for delta in only:
                yield 0, delta
        return
    waiting: dict[asyncio.Future[TextDelta], int] = {}
    try:
        waiting = {asyncio.ensure_future(anext(stream)): index for index, stream in enumerate(streams)}
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(future)
                try:
                    delta = future.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(anext(streams[index]))] = index
                yield index, delta
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
