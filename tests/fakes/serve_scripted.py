"""`python -m tests.fakes.serve_scripted FOLDER`: the daemon over a scripted engine; prints its URL when ready."""

from __future__ import annotations

import asyncio
import sys

from mlx_server.core.settings import Settings
from mlx_server.daemon.server import serve
from tests.fakes.scripted_engine import ScriptedEngine


def main(folder: str) -> None:
    settings = Settings(model=folder, port=0)
    engine = ScriptedEngine(stall_after=1)
    asyncio.run(serve(settings, lambda settings, path, on_progress: engine, say))


def say(url: str) -> None:
    sys.stdout.write(url + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
