"""The keys as they are now: the file is looked at with every request, and read when it has changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import Settings
from mlx_server.services.keys import ApiKey, keys_path, match_key, read_keys

logger = logging.getLogger(__name__)

_Mark = tuple[int, int, int, int]
_UNREAD: _Mark = (0, 0, 0, 0)


class KeyRing:
    """Who may come in. Owned by the daemon's event loop.

    required: whether a request needs a key. Once keys have been seen they are needed as long as the process lives, so
    that revoking the last one opens nothing; `always` needs them from the start. A file that cannot be trusted any more
    lets nobody in until it is mended (`test_key_ring.py`).
    """

    def __init__(self, path: Path, *, must_exist: bool = False, always: bool = False) -> None:
        self._path = path
        self._must_exist = must_exist
        self._always = always
        self._mark: _Mark | None = _UNREAD
        self._keys: Mapping[str, ApiKey] = MappingProxyType({})
        self._broken: SettingsError | None = None

    @classmethod
    def of(cls, settings: Settings, *, always: bool) -> KeyRing:
        """The ring of these settings. A file that they name must exist: a slip in its name must not open the daemon."""
        return cls(keys_path(settings), must_exist=settings.keys_file is not None, always=always)

    def look(self) -> None:
        """Read the file if it is not what it was. One `stat` when it is. Raises nothing."""
        try:
            self._read_if_changed()
        except SettingsError as error:
            if str(error) != str(self._broken):
                logger.error("every request is refused: %s", error)
            self._broken = error
            self._mark = _UNREAD
            self._keys = MappingProxyType({})

    def check(self) -> None:
        """Raise the `SettingsError` that makes the file unfit."""
        self.look()
        if self._broken is not None:
            raise self._broken

    @property
    def required(self) -> bool:
        return self._always or self._broken is not None

    @property
    def is_empty(self) -> bool:
        return not self._keys

    def find(self, text: str) -> ApiKey | None:
        """The key with this text, as of the last look."""
        return match_key(self._keys, text)

    def _read_if_changed(self) -> None:
        mark = self._marked()
        if mark == self._mark:
            return
        self._mark = mark
        if mark is None and self._must_exist:
            raise SettingsError(f"keys_file = '{self._path}' does not exist; 'mlx-serve keys add NAME' makes it")
        keys = read_keys(self._path)
        self._broken = None
        self._keys = MappingProxyType({key.id: key for key in keys})
        self._always = self._always or bool(keys)

    def _marked(self) -> _Mark | None:
        """Changes with every replacement, edit and change of rights; None where there is no file."""
        try:
            about = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SettingsError(f"keys_file = '{self._path}' cannot be used: {error.strerror}") from error
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
