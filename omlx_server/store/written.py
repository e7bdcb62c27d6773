"""The bytes of blocks that were written today, kept in a tiny file beside them. mlx thread."""

import logging
from collections.abc import Callable
from typing import Annotated

import msgspec

from omlx_server.core.cold.index import WriteCause
from omlx_server.core.memory.ledger import in_words

_log = logging.getLogger(__name__)
WRITTEN = "written.json"
SAVED_BYTES = 64 << 20
_LAST_DAY = 3_652_059  # of year 9999


class _Written(msgspec.Struct, frozen=True):
    day: Annotated[int, msgspec.Meta(ge=1, le=_LAST_DAY)]
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**60)]


def written_of_bytes(data: bytes) -> tuple[int, int]:
    """Return day and bytes; of a damaged file (0, 0), which counts as nothing."""
    try:
        written = msgspec.json.decode(data, type=_Written)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0, 0
    return written.day, written.bytes


class WrittenToday:
    """Counts bytes by the local date of `today` (as date.toordinal), and gives the file's content
    to `save`. `limit` 0: no limit."""

    def __init__(self, limit: int, today: Callable[[], int], save: Callable[[bytes], None]) -> None:
        self.limit = limit
        self._today, self._save = today, save
        self._day = self._nbytes = self._unsaved = 0
        self._resumed = 0  # of `_nbytes`, by an earlier process
        self._is_told = False  # whether the log says that the day's bytes are spent

    def resume(self, day: int, nbytes: int) -> None:
        """Take over what an earlier process has written. A later call takes the place of this."""
        if day >= self._day:
            here = self._nbytes - (self._resumed if day == self._day else 0)
            self._day, self._nbytes, self._resumed = day, here + nbytes, nbytes

    def count(self) -> int:
        """Return the bytes of today. A date that went back gives no bytes, one that was wrong by
        years ends."""
        day = self._today()
        if day > self._day:
            self._day, self._nbytes, self._resumed, self._is_told = day, 0, 0, False
        elif day < self._day - 1:
            self._day = day
        return self._nbytes

    def allows(self, nbytes: int, cause: WriteCause) -> bool:
        if not self.limit or self.count() + nbytes <= self.limit * cause.value:
            return True
        if cause is not WriteCause.SEEN_ONCE and not self._is_told:
            self._is_told = True
            text = "no more blocks are written today: cache.cold_writes_per_day (%s) is spent"
            _log.warning(text, in_words(self.limit))
        return False

    def add(self, nbytes: int) -> None:
        self._nbytes = self.count() + nbytes
        self._unsaved += nbytes
        self.save()

    def save(self, *, ends: bool = False) -> None:
        """Save the count if it has changed by much, or at all when the process `ends`."""
        least = min(SAVED_BYTES, self.limit // 16) if self.limit else SAVED_BYTES
        if self._unsaved > (0 if ends else least):
            self._unsaved = 0
            self._save(msgspec.json.encode(_Written(self._day, self._nbytes)))
