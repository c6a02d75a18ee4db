"""The daemon's feed: the facts that the dashboard shows, as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from mlx_server.api.live.facts import Facts, History
from mlx_server.cli.chat_client import ChatClient, ChatError

_FEED = "/dashboard/events"
_SILENCE_S = 10.0
"""The feed speaks once a second."""


async def watch(client: ChatClient) -> AsyncGenerator[History | Facts, None]:
    """The history, then the facts of each second; ends when the daemon ends it. Raises `ChatError`."""
    async with aclosing(client.events(_FEED, _SILENCE_S)) as events:
        async for event in events:
            try:
                if event.event == "history":
                    yield msgspec.json.decode(event.data, type=History)
                elif event.event == "facts":
                    yield msgspec.json.decode(event.data, type=Facts)
            except msgspec.DecodeError as error:
                raise ChatError(f"{client.url} is another version of mlx-serve than this command: {error}") from error
