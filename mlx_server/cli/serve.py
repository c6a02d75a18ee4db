"""`mlx-serve serve`: the daemon in the foreground."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import msgspec
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mlx_server.cli.loading_bar import LoadingBar, log_to
from mlx_server.core.messages import EngineInfo
from mlx_server.core.settings import Settings
from mlx_server.engine.client import EngineClient, LoadProgress

PLAIN_WIDTH = 200
"""Columns where stdout is no terminal: wide enough that no line wraps."""


class EngineMaker:
    """Makes the daemon's engine and remembers it, so that its figures can be shown."""

    def __init__(self, on_progress: LoadProgress) -> None:
        self._on_progress = on_progress
        self._engine: EngineClient | None = None

    def __call__(self, settings: Settings, model_path: Path, on_progress: LoadProgress) -> EngineClient:
        from mlx_server.engine.make import make_engine

        def progress(stage: str, fraction: float) -> None:
            on_progress(stage, fraction)
            self._on_progress(stage, fraction)

        self._engine = make_engine(settings, model_path, progress)
        return self._engine

    @property
    def info(self) -> EngineInfo:
        """Of the engine made last. Raises `RuntimeError` before that, and what `EngineClient.info` raises."""
        if self._engine is None:
            raise RuntimeError("no engine has been made")
        return self._engine.info


def serve(settings: Settings) -> None:
    """Serve one model to every app on this machine, until Ctrl-C or SIGTERM.

    Every setting below can also be given as an environment variable: --max-queue is MLX_SERVE_MAX_QUEUE.
    """
    from mlx_server.daemon.server import serve as run_daemon  # FastAPI: a second that --help need not wait

    errors, out = Console(stderr=True), Console()
    log_to(errors, settings.log_level, settings.log_file, settings.log_format)
    with LoadingBar(errors, settings.served_model_name or settings.model) as bar:
        maker = EngineMaker(bar.update)

        def announce(url: str) -> None:
            bar.close()
            figures = ready_figures(url, maker.info)
            if out.is_terminal:
                out.print(Panel(figures, title="mlx-serve is ready", title_align="left", expand=False))
            else:
                out.print(figures, width=PLAIN_WIDTH)
            out.print(Text(curl_line(url)), end="\n\n", soft_wrap=True)

        asyncio.run(run_daemon(settings, maker, announce))


def ready_figures(url: str, info: EngineInfo) -> Table:
    """What a person wants to know of a daemon that is ready."""
    from mlx_server.daemon.model_source import DEMO_FOLDER

    tokens = info.num_blocks * info.block_size
    per_token = info.kv_bytes_per_token
    full = -(-info.max_model_len // info.block_size) * info.block_size * per_token
    rows = {
        "model": f"{info.model_id} ({info.model_type}, {gigabytes(info.weight_bytes)} of weights)",
        "base URL": f"{url}/v1",
        "context": f"{info.max_model_len:,} tokens a request, {info.max_num_seqs} requests at a time",
        "KV pool": f"{info.num_blocks:,} blocks, {gigabytes(tokens * per_token)}, {tokens:,} tokens at most",
        "KV of a request": f"{gigabytes(full)} at full context, {per_token / 1024:.1f} KB a token ('mlx-serve plan')",
        "loaded in": f"{info.load_s:.1f} s",
    }
    if Path(info.model_path) == DEMO_FOLDER:
        rows["note"] = "the embedded demonstration model; --model NAME serves a real one"
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def curl_line(url: str) -> str:
    """A request to paste into a shell."""
    body = msgspec.json.encode({"messages": [{"role": "user", "content": "Hello!"}]}).decode()
    command = ["curl", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body]
    return shlex.join(command)


def gigabytes(count: int) -> str:
    """Bytes as a person reads them, in powers of 1024 as `kv_memory` is."""
    return f"{count / (1 << 30):.2f} GB" if count >= 1 << 29 else f"{count / (1 << 20):.1f} MB"
