"""What a running daemon makes of changes to the file."""

import logging
from pathlib import Path

import pytest

from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import Settings
from mlx_server.services import key_ring
from mlx_server.services.key_ring import KeyRing
from mlx_server.services.keys import add_key, read_keys, revoke_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def found(ring: KeyRing, text: str) -> str | None:
    ring.look()
    key = ring.find(text)
    return None if key is None else key.name


def test_changes_count_from_the_next_look_on(path: Path) -> None:
    ring = KeyRing(path)
    ring.check()
    assert ring.is_empty and not ring.required
    _, one = add_key(path, "one")
    assert (found(ring, one), ring.required) == ("one", True)
    _, two = add_key(path, "two")
    assert found(ring, two) == "two"
    revoke_key(path, "one")
    assert (found(ring, one), found(ring, two)) == (None, "two")


@pytest.mark.parametrize("how", ["revoked", "file removed"])
def test_the_end_of_the_last_key_opens_nothing(path: Path, how: str) -> None:
    _, text = add_key(path, "one")
    ring = KeyRing(path)
    assert found(ring, text) == "one"
    if how == "revoked":
        revoke_key(path, "one")
    else:
        path.unlink()
    assert found(ring, text) is None
    assert ring.is_empty and ring.required


@pytest.mark.parametrize("how", ["damaged", "readable by others"])
def test_a_file_that_turns_bad_lets_nobody_in_until_it_is_mended(
    path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    _, text = add_key(path, "one")
    good = path.read_bytes()
    ring = KeyRing(path)
    assert found(ring, text) == "one"
    if how == "damaged":
        path.write_bytes(good[:-20])
    else:
        path.chmod(0o644)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert found(ring, text) is None
            assert ring.required
    assert [record.message.count(str(path)) for record in caplog.records] == [1]
    assert text not in caplog.text
    with pytest.raises(SettingsError):
        ring.check()
    path.write_bytes(good)
    path.chmod(0o600)
    assert found(ring, text) == "one"


def test_a_bad_file_where_there_was_none_lets_nobody_in(path: Path) -> None:
    ring = KeyRing(path)
    ring.check()
    path.write_text("{")
    ring.look()
    assert ring.required


def test_an_unchanged_file_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = add_key(path, "one")
    reads = []
    monkeypatch.setattr(key_ring, "read_keys", lambda path: reads.append(path) or read_keys(path))
    ring = KeyRing(path)
    for _ in range(5):
        assert found(ring, text) == "one"
    assert len(reads) == 1


def test_a_file_named_in_the_settings_must_exist(path: Path) -> None:
    ring = KeyRing.of(Settings(keys_file=path), always=False)
    with pytest.raises(SettingsError, match=r"does not exist; 'mlx-serve keys add NAME' makes it"):
        ring.check()
    assert ring.required
    _, text = add_key(path, "one")
    assert found(ring, text) == "one"
