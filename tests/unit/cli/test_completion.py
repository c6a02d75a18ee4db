"""Shell completion, as the shells ask for it; and that neither it nor --help loads what they do not need."""

import os
import subprocess
import sys

import pytest

MLX_SERVE = [sys.executable, "-c", "from mlx_server.cli.main import main; main()"]


def complete(line: str) -> list[str]:
    asked = {"_MLX_SERVE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(MLX_SERVE, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mlx-serve mo", ["models"]),
        ("mlx-serve models r", ["rm"]),
        ("mlx-serve run --max", ["--max-tokens"]),
        ("mlx-serve keys add x --tier ", ["high", "normal", "low"]),
    ],
)
def test_bash(line: str, words: list[str]) -> None:
    assert complete(line) == words


def test_what_is_slow_to_import_is_not_imported() -> None:
    slow = (
        "mlx",
        "mlx_lm",
        "transformers",
        "fastapi",
        "huggingface_hub",
        "prompt_toolkit",
        "markdown_it",
        "logfire",
        "prometheus_client",
    )
    code = f"import sys, mlx_server.cli.main; print([name for name in {slow!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
