"""`mlx-serve chat`: a conversation in the terminal, or one answer for a script."""

from __future__ import annotations

import asyncio

from rich.console import Console

from mlx_server.cli.chat_backend import Backend, chat_backend
from mlx_server.cli.chat_session import ChatSession
from mlx_server.cli.options import BackendUrl, Key, MaxTokens, Model, Prompt, System, Temperature, Think
from mlx_server.cli.run import answer_once, exit_codes, new_session, question, served_model
from mlx_server.core.settings import DEMO_MODEL

DEMO_NOTE = "This is the small embedded demonstration model; --model NAME chats with a real one."


def chat(
    prompt: Prompt = None,
    url: BackendUrl = None,
    key: Key = None,
    model: Model = None,
    system: System = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    think: Think = None,
) -> None:
    """Chat with a model in the terminal; /help there lists the commands.

    With a PROMPT, or text on stdin, the plain answer is printed as by 'mlx-serve run'.
    """
    asked = question(prompt)
    session = new_session(system, temperature, max_tokens, think)
    if asked is not None:
        answer_once(session, asked, url, model, key)
        return
    console = Console()
    with exit_codes(), chat_backend(url, model, key, console) as backend:
        asyncio.run(_converse(session, backend, console))


async def _converse(session: ChatSession, backend: Backend, console: Console) -> None:
    # prompt-toolkit and markdown-it: a quarter of a second that other commands, and shell completion, need not wait
    from mlx_server.cli.chat_commands import COMMANDS
    from mlx_server.cli.chat_input import ChatPrompt, history_path
    from mlx_server.cli.chat_loop import chat_loop
    from mlx_server.cli.chat_view import ChatView

    async with backend.client() as client:
        session.model = await served_model(client) or session.model
        view = ChatView(console)
        view.notice(f"{session.model}: /help lists the commands, Ctrl-D leaves")
        if session.model == DEMO_MODEL:
            view.notice(DEMO_NOTE)
        await chat_loop(session, client, view, ChatPrompt(COMMANDS, history_path()))
