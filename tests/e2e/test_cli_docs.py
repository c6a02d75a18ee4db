"""Every command of docs/cli.md runs, or the page says where else it does; and every command has a place there."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from tokenizers import Tokenizer

from mlx_server.cli.main import app
from mlx_server.core.settings import Settings
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.daemon.server_thread import ServerThread
from tests.e2e.screen import WAIT_S
from tests.fakes.scripted_engine import ScriptedEngine

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()
FENCE = re.compile(r"(?:<!-- not run there: (.+) -->\n)?```sh\n(.*?)```", re.DOTALL)
SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def fences() -> list[tuple[str, list[str], str]]:
    """Section, commands, and the reason why they are not run here (or '')."""
    return [
        (title, commands.strip().splitlines(), reason)
        for title, text in SECTION.findall(PAGE)
        for reason, commands in FENCE.findall(text)
    ]


def run_here() -> list[object]:
    """The commands of a section belong together, in their order."""
    sections: dict[str, list[str]] = {}
    for title, commands, reason in fences():
        if not reason:
            sections.setdefault(title, []).extend(commands)
    return [pytest.param(commands, id=title) for title, commands in sections.items()]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    words = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")).encode("Paris").ids
    with ServerThread(Settings(model="demo"), lambda *_: ScriptedEngine(reply=lambda request: words)) as server:
        yield server


@pytest.fixture
def env(server: ServerThread, tmp_path: Path) -> dict[str, str]:
    """A user's, whose folders are empty, and whose daemon is `server`."""
    command = tmp_path / "bin" / "mlx-serve"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom mlx_server.cli.main import main\nmain()\n")
    command.chmod(0o700)
    own = {name: str(tmp_path / name) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HF_HOME", "HOME")}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("MLX_SERVE_")},
        **own,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MLX_SERVE_PORT": server.url.rpartition(":")[2],
    }


@pytest.mark.parametrize("commands", run_here())
def test_examples(commands: list[str], env: dict[str, str]) -> None:
    script = "\n".join(["set -e -o pipefail", *commands])
    done = subprocess.run(
        ["bash", "-c", script], stdin=subprocess.DEVNULL, env=env, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


def test_what_is_not_run_is_still_a_command() -> None:
    root = typer.main.get_command(app)
    for _, commands, reason in fences():
        for line in commands if reason else []:
            words = shlex.split(line)
            with root.make_context("mlx-serve", words[1:], resilient_parsing=True) as context:
                name = words[1] if not words[1].startswith("-") else ""
                assert not name or name in context.command.list_commands(context), line  # type: ignore[attr-defined]


def test_the_tests_that_the_page_names_exist() -> None:
    for _, _, reason in fences():
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
            assert (ROOT / path).exists(), path


def test_every_command_has_a_section() -> None:
    root = typer.main.get_command(app)
    with root.make_context("mlx-serve", [], resilient_parsing=True) as context:
        names = root.list_commands(context)  # type: ignore[attr-defined]
    titles = {title for title, _, _ in fences()}
    assert set(names) <= titles
