"""Notices when the config file changes, appears or vanishes."""

from collections.abc import Callable
from pathlib import Path

from omlx_server.errors import ConfigError

POLL_SECONDS = 1.0

_Mark = tuple[Path, int, int, int]


class ConfigFile:
    """Watches the config file, whose path `find` returns."""

    def __init__(self, find: Callable[[], Path | None]) -> None:
        self._find = find
        self._taken: _Mark | None
        self._seen: _Mark | None
        self.take()

    def take(self) -> None:
        """Remember the state of the file, before it is read."""
        self._taken = self._seen = self._mark()

    def has_changed(self) -> bool:
        """Return whether the file has changed since `take` and settled since the last call. The new
        state then counts as taken."""
        before, self._seen = self._seen, self._mark()
        if self._seen == self._taken or self._seen != before:
            return False
        self._taken = self._seen
        return True

    def _mark(self) -> _Mark | None:
        try:
            path = self._find()
            state = path.stat() if path else None
        except (ConfigError, OSError):
            return None
        if path is None or state is None:
            return None
        return path, state.st_mtime_ns, state.st_size, state.st_ino
