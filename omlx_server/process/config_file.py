"""Looks at a config file that may change, come or go while the server runs."""

from collections.abc import Callable
from pathlib import Path

from omlx_server.errors import ConfigError

POLL_SECONDS = 1.0

_Mark = tuple[Path, int, int, int]


class ConfigFile:
    """`find` names the file in use, if any: it may be another one at each look."""

    def __init__(self, find: Callable[[], Path | None]) -> None:
        self._find = find
        self._taken: _Mark | None
        self._seen: _Mark | None
        self.take()

    def take(self) -> None:
        """It is about to be read."""
        self._taken = self._seen = self._mark()

    def has_changed(self) -> bool:
        """Whether it is another one than when it was taken, and the same as at the last look:
        editors write in pieces. Then it counts as taken."""
        before, self._seen = self._seen, self._mark()
        if self._seen == self._taken or self._seen != before:
            return False
        self._taken = self._seen
        return True

    def _mark(self) -> _Mark | None:
        """Another one when the file has changed, come or gone."""
        try:
            path = self._find()
            found = path.stat() if path else None
        except (ConfigError, OSError):
            return None
        if path is None or found is None:
            return None
        return path, found.st_mtime_ns, found.st_size, found.st_ino
