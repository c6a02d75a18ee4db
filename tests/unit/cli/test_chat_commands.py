import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from rich.console import Console

from mlx_server.cli.chat_client import ChatClient, ChatError
from mlx_server.cli.chat_commands import COMMANDS, Chat, Next, run_command
from mlx_server.cli.chat_session import ChatSession
from mlx_server.cli.chat_view import ChatView
from mlx_server.core.messages import EngineStats

STATS: dict[str, Any] = {field.name: 1 for field in msgspec.structs.fields(EngineStats) if field.required}
HEALTH = {"status": "ok", "model": "m", "version": "9", "max_model_len": 4096, "stats": STATS}


class Bench:
    """A chat whose daemon is a stub and whose screen is a string."""

    def __init__(self, health: dict[str, Any]) -> None:
        self._screen = io.StringIO()
        self.session = ChatSession(model="m")
        self.client = ChatClient(
            "http://127.0.0.1:9", httpx2.MockTransport(lambda _: httpx2.Response(200, json=health))
        )
        self.chat = Chat(self.session, self.client, ChatView(Console(file=self._screen, width=200)))

    async def run(self, line: str) -> Next:
        return await run_command(self.chat, line)

    @property
    def shown(self) -> str:
        return self._screen.getvalue()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(HEALTH)
    async with bench.client:
        yield bench


async def test_help_lists_every_command(bench: Bench) -> None:
    await bench.run("/help")
    assert all(name in bench.shown for name in COMMANDS)


async def test_unknown_command(bench: Bench) -> None:
    with pytest.raises(ChatError, match="no command /nope; /help lists them"):
        await bench.run("/nope")


@pytest.mark.parametrize("name", ["/new", "/clear"])
async def test_new_conversation(bench: Bench, name: str) -> None:
    bench.session.record("a", "b")
    await bench.run(name)
    assert bench.session.messages == []


async def test_system(bench: Bench) -> None:
    await bench.run("/system Be brief. ")
    assert bench.session.system == "Be brief."
    await bench.run("/system")
    assert bench.session.system == "Be brief."
    await bench.run("/system none")
    assert bench.session.system is None


async def test_retry_asks_the_last_prompt(bench: Bench) -> None:
    with pytest.raises(ChatError, match="nothing has been asked"):
        await bench.run("/retry")
    bench.session.record("a", "b")
    assert await bench.run("/retry") == Next("a")
    assert bench.session.messages == []


async def test_undo(bench: Bench) -> None:
    bench.session.record("a", "b")
    await bench.run("/undo")
    with pytest.raises(ChatError, match="nothing to undo"):
        await bench.run("/undo")


async def test_set(bench: Bench) -> None:
    await bench.run("/set temperature 0.2")
    assert bench.session.options == {"temperature": 0.2}
    assert "temperature=0.2" in bench.shown
    await bench.run("/set temperature default")
    assert bench.session.options == {}
    with pytest.raises(ChatError, match="needs a value"):
        await bench.run("/set temperature")


async def test_think(bench: Bench) -> None:
    for word, value in (("on", True), ("off", False), ("auto", None)):
        await bench.run(f"/think {word}")
        assert bench.session.thinking is value
        assert f"thinking: {word}" in bench.shown
    with pytest.raises(ChatError, match="on, off or auto"):
        await bench.run("/think hard")


async def test_model_and_stats(bench: Bench) -> None:
    await bench.run("/model")
    assert "m, 4,096 tokens of context, at http://127.0.0.1:9" in bench.shown
    await bench.run("/stats")
    assert "1 running, 1 waiting" in bench.shown
    assert "100% from the prefix cache" in bench.shown


async def test_save_and_load(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "my chat.json"
    bench.session.record("question", "answer")
    await bench.run(f"/save {path}")
    await bench.run("/new")
    await bench.run(f"/load {path}")
    assert len(bench.session.messages) == 2
    assert "> question" in bench.shown
    for command in ("/save", "/load"):
        with pytest.raises(ChatError, match="needs a file name"):
            await bench.run(command)


async def test_quit(bench: Bench) -> None:
    assert (await bench.run("/quit")).leave
