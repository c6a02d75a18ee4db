"""Where settings come from, which source wins, and what is said of an illegal one."""

import re
from pathlib import Path

import platformdirs
import pytest

from mlx_server.core.config_file import chosen_config_path
from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import check_config_file, load_settings, load_settings_with_origins


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_flags_win_over_environment_over_file_over_defaults(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port = 1\nmax_queue = 2\nmax_num_seqs = 3\n")
    monkeypatch.setenv("MLX_SERVE_PORT", "10")
    monkeypatch.setenv("MLX_SERVE_MAX_QUEUE", "20")
    loaded = load_settings_with_origins(file, port="100")
    settings, origins = loaded.settings, loaded.origins
    assert (settings.port, settings.max_queue, settings.max_num_seqs, settings.drain_s) == (100, 20, 3, 15.0)
    assert [origins[key] for key in ("port", "max_queue", "max_num_seqs", "drain_s")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]
    assert loaded.file == file


def test_every_kind_of_value_can_be_in_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLX_SERVE_KEYS_FILE")
    file.write_text(
        'model = "owner/name"\nprefix_cache = false\nkv_memory = "2GB"\nmax_body_bytes = 4096\n'
        'step_target_ms = 50.5\nallowed_hosts = ["A.local", "b.local"]\ncors_origins = "http://x:1, http://y:2"\n'
        'keys_file = "/somewhere/keys.json"\n'
    )
    settings = load_settings(file)
    assert (settings.model, settings.prefix_cache, settings.kv_memory) == ("owner/name", False, 2 << 30)
    assert (settings.max_body_bytes, settings.step_target_ms) == (4096, 50.5)
    assert settings.allowed_hosts == ("a.local", "b.local")
    assert settings.cors_origins == ("http://x:1", "http://y:2")
    assert settings.keys_file == Path("/somewhere/keys.json")


def test_the_environment_names_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port = 7\n")
    monkeypatch.setenv("MLX_SERVE_CONFIG", str(file))
    assert load_settings().port == 7


def test_the_default_file_is_in_the_folder_for_settings_and_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLX_SERVE_CONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert chosen_config_path() is None
    assert load_settings().port == 8642
    folder = platformdirs.user_config_path("mlx-serve", appauthor=False)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("port = 8\n")
    assert chosen_config_path() == folder / "config.toml"
    assert load_settings().port == 8


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("port = 70000", ["port = 70000", "0 to 65,535"]),
        ('kv_memory = "lots"', ["kv_memory = 'lots'", "at least 1MB"]),
        ('log_level = "loud"', ["log_level = 'loud'", "debug or info or warning or error"]),
        ("prefix_cache = 3", ["prefix_cache = 3", "on or off"]),
        ("prot = 1", ["prot = 1", "no such setting", "did you mean port?"]),
        ("[server]\nport = 1", ["server = ", "no such setting"]),
        ('cors_origins = ["*"]', ["cors_origins = ", "'*' would let every web page"]),
        ("max_num_batched_tokens = 64", ["max_num_batched_tokens = 64", "at least max_num_seqs + 32"]),
    ],
)
def test_an_illegal_line_names_file_key_value_and_range(file: Path, line: str, words: list[str]) -> None:
    file.write_text(line)
    with pytest.raises(SettingsError) as caught:
        load_settings(file)
    text = str(caught.value)
    assert all(word in text for word in words), text
    if "batched" not in line:
        assert f"in '{file}'" in text


def test_an_illegal_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_SERVE_PORT", "http")
    with pytest.raises(SettingsError, match=re.escape("port = 'http' (MLX_SERVE_PORT)")):
        load_settings()


@pytest.mark.parametrize("content", [b"port = ", b"port 1", b"\xff\xfe", b"port = 1\nport = 2", b"a = " + b"[" * 9999])
def test_what_is_not_toml_names_the_file(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=re.escape(f"'{file}' is not TOML")):
        load_settings(file)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "folder"])
def test_a_named_file_that_cannot_be_read_is_refused(file: Path, make: object) -> None:
    make(file)  # type: ignore[operator]
    with pytest.raises(SettingsError, match=re.escape(f"'{file}' cannot be read")):
        load_settings(file)


def test_a_file_is_checked_whatever_the_environment_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_SERVE_PORT", "1")
    file.write_text("port = 70000")
    assert load_settings(file).port == 1
    with pytest.raises(SettingsError, match="port = 70000"):
        check_config_file(file)
    monkeypatch.setenv("MLX_SERVE_PORT", "http")
    file.write_text("max_queue = 7")
    assert check_config_file(file) == {"max_queue": 7}
