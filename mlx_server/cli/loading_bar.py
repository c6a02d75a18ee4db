"""Progress of a model that loads, on stderr, and the log lines beside it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from mlx_server.telemetry.log_file import keep_bounded, write_to
from mlx_server.telemetry.logs import LogFormat, setup_logging


class LoadingBar:
    """A context manager. `update` may be called from any thread; `close` as often as one likes.

    Where stderr is no terminal it shows nothing.
    """

    def __init__(self, console: Console, model: str) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._model = model
        self._task = self._progress.add_task(f"loading {model}", total=None)

    def update(self, stage: str, fraction: float) -> None:
        """The signature of `LoadProgress`: fraction in [0, 1] of this stage."""
        self._progress.update(self._task, description=f"{self._model}: {stage}", total=1.0, completed=fraction)

    def close(self) -> None:
        self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def log_to(console: Console, level: str, log_file: Path | None = None, log_format: LogFormat = "text") -> None:
    """Log to stderr: beside the bar in a terminal, one line each elsewhere and as JSON.

    With a `log_file`, stdout and stderr are that file from now on. Raises `SettingsError` when it cannot be written.
    """
    if log_file is not None:
        write_to(log_file)
    handler = None
    if console.is_terminal and log_format == "text":
        handler = RichHandler(console=console, show_path=False, rich_tracebacks=False, log_time_format="%X")
    setup_logging(level, handler, log_format)
    if log_file is not None:
        keep_bounded(log_file)
