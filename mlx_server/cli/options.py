"""Arguments and flags that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from mlx_server.cli.chat_client import KEY_VARIABLE

Prompt = Annotated[
    list[str] | None, typer.Argument(help="Ask this, print the answer and exit. Text on stdin follows it.")
]
BackendUrl = Annotated[
    str | None,
    typer.Option(help="Daemon to talk to. By default the local one; when none answers, one is started."),
]
Url = Annotated[str | None, typer.Option(help="Daemon to look at; by default the local one.")]
Key = Annotated[
    str | None,
    typer.Option(envvar=KEY_VARIABLE, help="API key, where the daemon needs one; other users see it in a flag."),
]
Model = Annotated[str | None, typer.Option(help="Model to ask, as for serve.")]
System = Annotated[str | None, typer.Option(help="System prompt.")]
Temperature = Annotated[str | None, typer.Option(help="0 to 2; 0 always takes the likeliest token.")]
MaxTokens = Annotated[str | None, typer.Option(help="Most tokens of an answer.")]
Think = Annotated[bool | None, typer.Option("--think/--no-think", help="Whether the model reasons before it answers.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
