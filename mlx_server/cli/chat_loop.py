"""The chat proper: read a turn, stream its answer, again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

from mlx_server.cli.chat_client import AnswerEnd, ChatClient, ChatError
from mlx_server.cli.chat_commands import COMMANDS, READ_ON, Chat, Next, run_command
from mlx_server.cli.chat_input import ChatPrompt, echo_off
from mlx_server.cli.chat_session import ChatSession
from mlx_server.cli.chat_view import AnswerPainter, ChatView


async def chat_loop(session: ChatSession, client: ChatClient, view: ChatView, prompt: ChatPrompt) -> None:
    """Until /quit or Ctrl-D. A failed turn is one line, and the chat goes on."""
    chat = Chat(session, client, view)
    while True:
        try:
            line = await prompt.read()
        except EOFError:
            return
        except KeyboardInterrupt:
            view.notice("Ctrl-D leaves")
            continue
        try:
            following = await _handle(chat, line)
        except ChatError as error:
            view.error(str(error))
            following = READ_ON
        if following.leave:
            return


async def _handle(chat: Chat, line: str) -> Next:
    following = Next(line or None)
    if line.split(" ", 1)[0] in COMMANDS or _looks_like_command(line):
        following = await run_command(chat, line)
    if following.prompt is not None:
        await ask(chat, following.prompt)
    return following


def _looks_like_command(line: str) -> bool:
    """A slash and a word; a path such as /etc/hosts is a question, not a mistyped command."""
    word = line.split(maxsplit=1)[0] if line else ""
    return word.startswith("/") and word[1:].isalpha()


async def ask(chat: Chat, prompt: str) -> None:
    """Stream one answer onto the screen. Ctrl-C ends it; what came so far stays in the conversation.

    Raises `ChatError`; the text that came before it is kept, too.
    """
    chat.session.last_prompt = prompt
    pieces: list[str] = []
    streaming = asyncio.create_task(_stream(chat, prompt, pieces))
    try:
        with echo_off(), _on_interrupt(streaming):
            end = await streaming
        chat.view.figures(end)
    except asyncio.CancelledError:
        if not streaming.cancelled():
            raise
        chat.view.notice("interrupted\n")
    finally:
        chat.session.record(prompt, "".join(pieces))


async def _stream(chat: Chat, prompt: str, pieces: list[str]) -> AnswerEnd:
    """Paint the answer and collect its text, without its reasoning, in `pieces`."""
    painter: AnswerPainter
    async with aclosing(chat.client.answer(chat.session.request(prompt))) as parts:
        with chat.view.answer() as painter:
            async for part in parts:
                if isinstance(part, AnswerEnd):
                    return part
                painter.add(part)
                if not part.is_reasoning:
                    pieces.append(part.text)
    raise ChatError("the answer ended without a reason")


@contextmanager
def _on_interrupt(task: asyncio.Task[AnswerEnd]) -> Iterator[None]:
    """Ctrl-C cancels `task` instead of the program."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
