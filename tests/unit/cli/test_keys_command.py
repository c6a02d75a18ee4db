"""`mlx-serve keys`: what goes to stdout, what to stderr, and the exit codes."""

import re
from pathlib import Path

import pytest

from mlx_server.cli.main import main
from mlx_server.services.keys import read_keys


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mlx-serve" / "keys.json"
    monkeypatch.setenv("MLX_SERVE_KEYS_FILE", str(path))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["keys", *arguments])
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


def test_add_prints_the_key_alone_and_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "add", "laptop")
    assert code == 0
    assert re.fullmatch(r"mlxs-[0-9a-f]{8}-[\w-]{43}\n", out)
    assert out.strip() not in err
    secret = out.strip()[14:]
    assert secret not in path.read_text()
    _, listing, _ = run(capsys, "list")
    assert "laptop" in listing and secret not in listing


def test_add_takes_a_tier_and_limits(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "add", "ci", "--tier", "low", "--max-concurrent", "4", "--per-minute", "90")
    (key,) = read_keys(path)
    assert (key.name, key.tier, key.max_concurrent, key.per_minute) == ("ci", "low", 4, 90)
    _, listing, _ = run(capsys, "list")
    assert re.search(rf"{key.id} +ci +low +4 +90 +\d{{4}}-\d\d-\d\d", listing)


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--tier", "root", "low"),
        ("--max-concurrent", "0", "1"),
        ("--per-minute", "-1", "1"),
        ("--per-minute", "x", "x"),
    ],
)
def test_an_illegal_limit_is_a_usage_error(
    path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str, words: str
) -> None:
    code, out, err = run(capsys, "add", "ci", flag, value)
    assert (code, out) == (2, "")
    assert flag in err and words in err
    assert not path.exists()


def test_a_name_that_is_taken_fails_on_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "add", "laptop")
    code, out, err = run(capsys, "add", "laptop")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("mlx-serve: there is a key named 'laptop'")


@pytest.mark.parametrize("by", ["name", "id"])
def test_revoke(path: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    run(capsys, "add", "laptop")
    (key,) = read_keys(path)
    code, out, err = run(capsys, "revoke", getattr(key, by))
    assert (code, out) == (0, "")
    assert key.id in err
    assert read_keys(path) == ()
    assert run(capsys, "list")[2].startswith("There are no keys in ")
    code, _, err = run(capsys, "revoke", getattr(key, by))
    assert code == 2
    assert "no key with the name or id" in " ".join(err.split())


@pytest.mark.parametrize("command", [["add", "x"], ["list"], ["revoke", "x"]], ids=lambda command: command[0])
def test_a_damaged_file_is_one_line_and_left_alone(
    path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    path.parent.mkdir(mode=0o700)
    path.touch(mode=0o600)
    path.write_text("{")
    code, out, err = run(capsys, *command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is damaged" in err
    assert path.read_text() == "{"
