"""`mlx-serve run`: what goes to stdout, and the exit codes; the engine repeats the prompt."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator

import pytest
from tokenizers import Tokenizer

from mlx_server.cli.main import main
from mlx_server.core.settings import Settings
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.daemon.server_thread import ServerThread
from tests.fakes.scripted_engine import ScriptedEngine

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    words = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")).encode("one two three").ids
    return ScriptedEngine(reply=lambda request: words)


@pytest.fixture(scope="module")
def server(engine: ScriptedEngine) -> Iterator[ServerThread]:
    with ServerThread(Settings(model="demo"), lambda *_: engine) as server:
        yield server


@pytest.fixture
def run(server: ServerThread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def ask(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as exit_info:
            main(["run", "--url", server.url, *arguments])
        return int(exit_info.value.code or 0), *capsys.readouterr()

    return ask


def prompt_of(engine: ScriptedEngine) -> str:
    """What the last request asked, with the template's words around it."""
    tokenizer = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))
    return str(tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False))


def test_plain_text(run: Run) -> None:
    assert run("Count") == (0, "one two three\n", "")


def test_stdin_is_the_prompt_or_follows_it(run: Run, engine: ScriptedEngine) -> None:
    assert run(stdin="from a pipe\n")[0] == 0
    assert "from a pipe" in prompt_of(engine)
    assert run("Sum", "it", "up:", stdin="a long text")[0] == 0
    assert "Sum it up:\n\na long text" in prompt_of(engine)


def test_options_reach_the_engine(run: Run, engine: ScriptedEngine) -> None:
    code, out, _ = run("--system", "Be brief.", "--max-tokens", "1", "--temperature", "0", "Count")
    assert (code, out) == (0, "one\n")
    sampling = engine.requests[-1].sampling
    assert (sampling.max_tokens, sampling.temperature) == (1, 0)
    assert "Be brief." in prompt_of(engine)


def test_json_is_the_whole_response(run: Run) -> None:
    code, out, err = run("--json", "Count")
    response = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert response["object"] == "chat.completion"
    assert response["choices"][0]["message"]["content"] == "one two three"
    assert response["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_refusal_is_one_line(run: Run, flags: list[str]) -> None:
    code, out, err = run(*flags, stdin="again and " * 2000)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("mlx-serve: This model's maximum context length is")


def test_nothing_to_ask(run: Run) -> None:
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "nothing to ask" in err


def test_an_illegal_option(run: Run) -> None:
    code, out, err = run("--max-tokens", "0", "Count")
    assert (code, out) == (2, "")
    assert "max_tokens must be a whole number" in err


def test_a_reader_that_has_gone(server: ServerThread, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        code, _, err = run("Count")
    assert (code, err) == (141, "")
