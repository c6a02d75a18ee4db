"""The chat's /commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from mlx_server.cli.chat_client import ChatClient, ChatError, Health
from mlx_server.cli.chat_session import OPTIONS, ChatSession
from mlx_server.cli.chat_view import ChatView


@dataclass(frozen=True, slots=True)
class Chat:
    """What a command may act on."""

    session: ChatSession
    client: ChatClient
    view: ChatView


@dataclass(frozen=True, slots=True)
class Next:
    """What the loop does after a command: ask `prompt`, leave, or read the next turn."""

    prompt: str | None = None
    leave: bool = False


READ_ON = Next()
Handler = Callable[[Chat, str], Awaitable[Next]]


@dataclass(frozen=True, slots=True)
class Command:
    """usage: its arguments as `/help` shows them."""

    run: Handler
    usage: str
    about: str


async def run_command(chat: Chat, line: str) -> Next:
    """Run `line`, which starts with a slash. Raises `ChatError` for an unknown command or bad argument."""
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise ChatError(f"there is no command {name}; /help lists them")
    return await command.run(chat, argument.strip())


async def _help(chat: Chat, argument: str) -> Next:
    table = Table.grid(padding=(0, 2))
    for name, command in COMMANDS.items():
        table.add_row(Text(f"{name} {command.usage}".strip(), style="bold"), Text(command.about))
    chat.view.show(table)
    chat.view.notice(
        "Alt-Enter or a backslash at the end starts a new line. Ctrl-C interrupts an answer, Ctrl-D leaves."
    )
    return READ_ON


async def _new(chat: Chat, argument: str) -> Next:
    chat.session.clear()
    chat.view.notice("a new conversation; system prompt and options stay")
    return READ_ON


async def _system(chat: Chat, argument: str) -> Next:
    if argument:
        chat.session.system = None if argument == "none" else argument
    chat.view.notice(f"system prompt: {chat.session.system or 'none'}")
    return READ_ON


async def _retry(chat: Chat, argument: str) -> Next:
    prompt = chat.session.take_retry()
    if prompt is None:
        raise ChatError("nothing has been asked yet")
    chat.view.notice(f"asking again: {prompt}")
    return Next(prompt)


async def _undo(chat: Chat, argument: str) -> Next:
    prompt = chat.session.undo()
    if prompt is None:
        raise ChatError("there is nothing to undo")
    chat.view.notice(f"forgotten: {prompt}")
    return READ_ON


async def _set(chat: Chat, argument: str) -> Next:
    name, _, value = argument.partition(" ")
    if name and not value:
        raise ChatError(f"/set {name} needs a value, or 'default'")
    if name:
        chat.session.set_option(name, value.strip())
    options = chat.session.options
    chat.view.notice("  ".join(f"{name}={options.get(name, 'default')}" for name in OPTIONS))
    return READ_ON


async def _think(chat: Chat, argument: str) -> Next:
    words = {"on": True, "off": False, "auto": None}
    if argument and argument not in words:
        raise ChatError(f"/think takes on, off or auto, not {argument!r}")
    if argument:
        chat.session.thinking = words[argument]
    word = next(word for word, value in words.items() if value is chat.session.thinking)
    chat.view.notice(f"thinking: {word} (takes effect where the model's template knows enable_thinking)")
    return READ_ON


async def _model(chat: Chat, argument: str) -> Next:
    health = await _health(chat)
    context = f", {health.max_model_len:,} tokens of context" if health.max_model_len else ""
    chat.view.notice(f"{health.model}{context}, at {chat.client.url}")
    return READ_ON


async def _stats(chat: Chat, argument: str) -> Next:
    health = await _health(chat)
    if health.stats is None:
        raise ChatError("the daemon gives no figures")
    stats = health.stats
    blocks = stats.blocks_used + stats.blocks_cached + stats.blocks_free
    reused = stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0
    rows = {
        "up": f"{health.uptime_s / 60:.0f} min, mlx-serve {health.version}",
        "requests": f"{stats.running} running, {stats.waiting} waiting, {stats.requests_finished} finished",
        "KV blocks": f"{stats.blocks_used} used, {stats.blocks_cached} cached, {stats.blocks_free} free of {blocks}",
        "prompts": f"{stats.prompt_tokens:,} tokens, {reused:.0%} from the prefix cache",
        "answers": f"{stats.generated_tokens:,} tokens in {stats.steps:,} steps",
        "trouble": f"{stats.preemptions} preemptions, {stats.evictions} evictions, {stats.failed_steps} failed steps",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(value))
    chat.view.show(table)
    return READ_ON


async def _save(chat: Chat, argument: str) -> Next:
    path = _path(argument, "/save")
    chat.session.save(path)
    chat.view.notice(f"saved to {path}")
    return READ_ON


async def _load(chat: Chat, argument: str) -> Next:
    path = _path(argument, "/load")
    chat.session.load(path)
    messages = chat.session.messages
    for asked, answered in zip(messages[::2], messages[1::2], strict=True):
        chat.view.turn(asked.content, answered.content)
    chat.view.notice(f"loaded {len(messages) // 2} exchanges from {path}")
    return READ_ON


async def _quit(chat: Chat, argument: str) -> Next:
    return Next(leave=True)


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise ChatError(f"{command} needs a file name")
    return Path(argument).expanduser()


async def _health(chat: Chat) -> Health:
    health = await chat.client.health()
    if health is None:
        raise ChatError(f"nothing answers at {chat.client.url}; is the daemon still running?")
    return health


COMMANDS: dict[str, Command] = {
    "/help": Command(_help, "", "show this list"),
    "/new": Command(_new, "", "start a new conversation"),
    "/clear": Command(_new, "", "the same as /new"),
    "/system": Command(_system, "TEXT", "set the system prompt; 'none' removes it"),
    "/retry": Command(_retry, "", "ask the last question again"),
    "/undo": Command(_undo, "", "forget the last exchange"),
    "/set": Command(_set, "NAME VALUE", "set a sampling option, e.g. temperature 0.2; 'default' unsets it"),
    "/think": Command(_think, "on|off|auto", "ask the model to reason before it answers"),
    "/model": Command(_model, "", "show which model answers, and where"),
    "/stats": Command(_stats, "", "show the daemon's figures"),
    "/save": Command(_save, "FILE", "save the conversation"),
    "/load": Command(_load, "FILE", "load a saved conversation"),
    "/quit": Command(_quit, "", "leave; Ctrl-D does too"),
}
