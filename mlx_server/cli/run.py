"""`mlx-serve run`: one answer, for a pipe or a script."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

import typer
from rich.console import Console

from mlx_server.cli.chat_backend import Backend, chat_backend
from mlx_server.cli.chat_client import AnswerEnd, ChatClient, ChatError
from mlx_server.cli.chat_session import OPTIONS, ChatSession
from mlx_server.cli.options import BackendUrl, Json, Key, MaxTokens, Model, Prompt, System, Temperature, Think
from mlx_server.cli.printable import printable

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def run(
    prompt: Prompt = None,
    url: BackendUrl = None,
    key: Key = None,
    model: Model = None,
    system: System = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    think: Think = None,
    as_json: Json = False,
) -> None:
    """Answer PROMPT once, as plain text on stdout while it comes.

    Text on stdin follows the PROMPT, or is it. The exit code says whether the answer came.
    """
    asked = question(prompt)
    if asked is None:
        raise nothing_to_ask()
    session = new_session(system, temperature, max_tokens, think)
    answer_once(session, asked, url, model, key, as_json=as_json)


def question(words: list[str] | None) -> str | None:
    """The words, then the text on stdin; None where there is neither and a person could type. Raises `BadParameter`."""
    parts = [" ".join(words)] if words else []
    if not sys.stdin.isatty():
        try:
            parts.append(sys.stdin.read().strip())
        except UnicodeDecodeError as error:
            raise typer.BadParameter(f"stdin is not text: {error}") from error
    asked = "\n\n".join(part for part in parts if part)
    if not asked and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise nothing_to_ask()
    return asked or None


def nothing_to_ask() -> typer.BadParameter:
    return typer.BadParameter("there is nothing to ask: give a PROMPT, or text on stdin")


def new_session(system: str | None, temperature: str | None, max_tokens: str | None, think: bool | None) -> ChatSession:
    """Raises `typer.BadParameter` for an option outside its range."""
    session = ChatSession(model="default", system=system, thinking=think)
    for name, text in (("temperature", temperature), ("max_tokens", max_tokens)):
        if text is not None:
            try:
                session.options[name] = OPTIONS[name].parse(name, text)
            except ChatError as error:
                raise typer.BadParameter(str(error)) from error
    return session


def answer_once(
    session: ChatSession, asked: str, url: str | None, model: str | None, key: str | None, *, as_json: bool = False
) -> None:
    """Write the answer to stdout: its text as it comes, or the whole response object. Raises `ChatError`."""
    with exit_codes(), chat_backend(url, model, key, Console(stderr=True)) as backend:
        asyncio.run(_answer(session, backend, asked, as_json=as_json))


@contextmanager
def exit_codes() -> Iterator[None]:
    """Ctrl-C, and a reader of stdout that has gone, end the command as they end others."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_BROKEN_PIPE) from None


async def _answer(session: ChatSession, backend: Backend, asked: str, *, as_json: bool) -> None:
    async with backend.client() as client:
        session.model = await served_model(client) or session.model
        if as_json:
            response = await client.complete(session.request(asked))
            sys.stdout.write(response.decode() + "\n")
        else:
            await _stream(client, session, asked)
        sys.stdout.flush()


async def served_model(client: ChatClient) -> str | None:
    """The name of the model there; None when the daemon does not say. Raises `ChatError`."""
    health = await client.health()
    return health.model or None if health is not None else None


async def _stream(client: ChatClient, session: ChatSession, asked: str) -> None:
    is_terminal = sys.stdout.isatty()
    async with aclosing(client.answer(session.request(asked))) as parts:
        async for part in parts:
            if not isinstance(part, AnswerEnd) and not part.is_reasoning:
                sys.stdout.write(printable(part.text) if is_terminal else part.text)
                sys.stdout.flush()
    sys.stdout.write("\n")
