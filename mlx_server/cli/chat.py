"""`mlx-serve chat`: a conversation in the terminal, or one answer for a script."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from mlx_server.cli.chat_backend import Backend, chat_backend
from mlx_server.cli.chat_client import KEY_VARIABLE, ChatError
from mlx_server.cli.chat_commands import COMMANDS
from mlx_server.cli.chat_input import ChatPrompt, history_path
from mlx_server.cli.chat_loop import chat_loop, chat_once
from mlx_server.cli.chat_session import OPTIONS, ChatSession
from mlx_server.cli.chat_view import ChatView
from mlx_server.core.settings import DEMO_MODEL

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
DEMO_NOTE = "This is the small embedded demonstration model; --model NAME chats with a real one."


def chat(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Ask this, print the answer and exit. Text on stdin follows it.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Daemon to talk to. By default the local one; when none answers, one is started."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(envvar=KEY_VARIABLE, help="API key, where the daemon needs one; other users see it in a flag."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to chat with, as for serve.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Annotated[str | None, typer.Option(help="0 to 2; 0 always takes the likeliest token.")] = None,
    max_tokens: Annotated[str | None, typer.Option(help="Most tokens of an answer.")] = None,
    think: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Whether the model reasons before it answers.")
    ] = None,
) -> None:
    """Chat with a model in the terminal; /help there lists the commands.

    With a PROMPT, or text on stdin, the plain answer is printed and the exit code says whether it came.
    """
    question = _question(prompt)
    session = ChatSession(model="default", system=system, thinking=think)
    for name, text in (("temperature", temperature), ("max_tokens", max_tokens)):
        if text is not None:
            try:
                session.options[name] = OPTIONS[name].parse(name, text)
            except ChatError as error:
                raise typer.BadParameter(str(error)) from error
    console = Console(stderr=question is not None)
    try:
        with chat_backend(url, model, key, console) as backend:
            asyncio.run(_run(session, backend, console, question))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader has gone; Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_BROKEN_PIPE) from None


async def _run(session: ChatSession, backend: Backend, console: Console, question: str | None) -> None:
    async with backend.client() as client:
        health = await client.health()
        session.model = (health and health.model) or session.model
        if question is not None:
            await chat_once(session, client, question)
            return
        view = ChatView(console)
        view.notice(f"{session.model}: /help lists the commands, Ctrl-D leaves")
        if session.model == DEMO_MODEL:
            view.notice(DEMO_NOTE)
        await chat_loop(session, client, view, ChatPrompt(COMMANDS, history_path()))


def _question(words: list[str] | None) -> str | None:
    """What to ask in one go; None for a conversation. Raises `typer.BadParameter`."""
    parts = [" ".join(words)] if words else []
    if not sys.stdin.isatty():
        try:
            parts.append(sys.stdin.read().strip())
        except UnicodeDecodeError as error:
            raise typer.BadParameter(f"stdin is not text: {error}") from error
    question = "\n\n".join(part for part in parts if part)
    if question:
        return question
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise typer.BadParameter("there is nothing to ask: give a PROMPT, or text on stdin")
    return None
