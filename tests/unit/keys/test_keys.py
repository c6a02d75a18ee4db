"""The file of API keys: what is in it, who may read it, and what happens to a bad one."""

import json
import os
import re
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen

import platformdirs
import pytest

from mlx_server.core.errors import SettingsError
from mlx_server.core.messages import Priority
from mlx_server.core.settings import Settings
from mlx_server.services.keys import ApiKey, KeyNameError, add_key, keys_path, match_key, read_keys, revoke_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "keys.json"


def by_id(path: Path) -> dict[str, ApiKey]:
    return {key.id: key for key in read_keys(path)}


def test_a_key_is_found_by_its_text_and_nothing_else(path: Path) -> None:
    one, text = add_key(path, "one", "high", max_concurrent=3, per_minute=60)
    two, other = add_key(path, "two")
    keys = by_id(path)
    assert match_key(keys, text) == one == keys[one.id]
    assert match_key(keys, other) == two
    mixed = text[:13] + other[13:]
    flipped = text[:-1] + ("A" if text[-1] != "A" else "B")
    for wrong in (mixed, flipped, text[:-1], text + "x", text.upper(), one.sha256, one.id, one.name, "", "ü", "mlxs-"):
        assert match_key(keys, wrong) is None
    assert match_key({}, text) is None
    assert (one.priority, two.priority) == (Priority.HIGH, Priority.NORMAL)


def test_a_key_has_256_random_bits_and_only_its_hash_is_kept(path: Path) -> None:
    texts = [add_key(path, f"k{index}")[1] for index in range(20)]
    assert len({text[14:] for text in texts}) == 20
    kept = path.read_text()
    for text in texts:
        assert re.fullmatch(r"mlxs-[0-9a-f]{8}-[A-Za-z0-9_-]{43}", text)
        assert text[14:] not in kept


def test_file_and_folder_are_private(path: Path) -> None:
    before = os.umask(0)
    try:
        add_key(path, "one")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_failed_write_leaves_the_old_keys_and_no_litter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(path, "one")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SettingsError, match="No space left"):
            add_key(path, "two")
    assert path.read_bytes() == before
    assert {item.name for item in path.parent.iterdir()} == {"keys.json", "keys.json.lock"}


def test_adding_at_the_same_time_loses_no_key(path: Path) -> None:
    """Four threads here and a process beside them; no lock of this interpreter covers both."""
    code = (
        "import sys; from pathlib import Path; from mlx_server.services.keys import add_key\n"
        "for i in range(10): add_key(Path(sys.argv[1]), f'process-{i}')"
    )
    root = str(Path(__file__).resolve().parents[3])
    with Popen([sys.executable, "-c", code, str(path)], env={**os.environ, "PYTHONPATH": root}) as process:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda index: add_key(path, f"thread-{index}"), range(20)))
        assert process.wait(60) == 0
    assert len(by_id(path)) == 30


@pytest.mark.parametrize("which", ["name", "id"])
def test_revoke_by_name_or_id(path: Path, which: str) -> None:
    gone, _ = add_key(path, "gone")
    stays, _ = add_key(path, "stays")
    assert revoke_key(path, getattr(gone, which)) == gone
    assert list(by_id(path)) == [stays.id]
    assert revoke_key(path, getattr(gone, which)) is None


def test_revoke_where_there_is_no_file(path: Path) -> None:
    assert revoke_key(path, "x") is None
    assert not path.parent.exists()


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 65, "0123abcd", "ü", "a\n", "../x"])
def test_a_bad_name_is_refused_with_what_is_legal(path: Path, name: str) -> None:
    with pytest.raises(KeyNameError, match="1 to 64 letters"):
        add_key(path, name)


def test_a_name_is_used_once(path: Path) -> None:
    add_key(path, "one")
    with pytest.raises(KeyNameError, match="already"):
        add_key(path, "one")
    assert len(by_id(path)) == 1


GOOD = {"id": "01234567", "name": "x", "sha256": "0" * 64, "created_s": 1}


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"version": 1}', '{"version": 2, "keys": []}', '{"keys": []}', "\udcff",
        '{"version": 1, "keys": [], "more": 1}',
        *(
            json.dumps({"version": 1, "keys": keys})
            for keys in (
                [GOOD | {"id": "xyz"}], [GOOD | {"sha256": ""}], [GOOD | {"sha256": "0" * 63}], [GOOD, GOOD],
                [GOOD | {"tier": "root"}], [GOOD | {"per_minute": 0}], [GOOD | {"max_concurrent": -1}],
                [GOOD | {"tear": "low"}], [{"id": "01234567"}],
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_is_an_error_and_never_an_empty_one(path: Path, content: str) -> None:
    add_key(path, "one")
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SettingsError, match=r"keys_file = .*is damaged"):
        read_keys(path)
    with pytest.raises(SettingsError):
        add_key(path, "two")
    assert path.read_bytes() == content.encode(errors="surrogateescape")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_a_file_that_others_have_access_to_is_an_error(path: Path, mode: int) -> None:
    add_key(path, "one")
    path.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_keys(path)


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    large = tmp_path / "large"
    large.touch(0o600)
    os.truncate(large, 1 << 30)
    below_a_file = large / "keys.json"
    for bad in (fifo, folder, large, below_a_file):
        with pytest.raises(SettingsError, match="cannot be used"):
            read_keys(bad)


def test_where_the_keys_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keys_path(Settings(keys_file=tmp_path / "k")) == tmp_path / "k"
    monkeypatch.delenv("MLX_SERVE_KEYS_FILE")
    assert keys_path(Settings()) == platformdirs.user_config_path("mlx-serve", appauthor=False) / "keys.json"
