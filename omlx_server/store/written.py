"""The bytes of blocks that were written today, kept in a tiny file beside them. mlx thread."""

import logging
from collections.abc import Callable
from typing import Annotated

import msgspec

from omlx_server.core.cold.wear import DailyWrites, WriteCause
from omlx_server.core.memory.ledger import in_words

_log = logging.getLogger(__name__)
WRITTEN = "written.json"
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
    """Counts bytes by the date of `today`, and gives the file's content to `save`."""

    def __init__(
        self, daily_bytes: int, today: Callable[[], int], save: Callable[[bytes], None]
    ) -> None:
        self._writes, self._today, self._save = DailyWrites(daily_bytes), today, save

    def resume(self, day: int, nbytes: int) -> None:
        self._writes.resume(day, nbytes)

    def change(self, daily_bytes: int) -> None:
        self._writes.limit = daily_bytes

    @property
    def daily_bytes(self) -> int:
        return self._writes.limit

    @property
    def nbytes(self) -> int:
        self._writes.begin(self._today())
        return self._writes.nbytes

    def allows(self, nbytes: int, cause: WriteCause) -> bool:
        writes = self._writes
        writes.begin(self._today())
        if writes.allows(nbytes, cause):
            return True
        if cause is not WriteCause.SEEN_ONCE and not writes.is_told:
            writes.is_told = True
            text = "no more blocks are written today: cache.cold_writes_per_day (%s) is spent"
            _log.warning(text, in_words(writes.limit))
        return False

    def add(self, nbytes: int) -> None:
        self._writes.begin(self._today())
        self._writes.spend(nbytes)
        self.save()

    def save(self, *, ends: bool = False) -> None:
        """Save the count if it has changed by much, or at all when the process `ends`."""
        if self._writes.take_save(ends=ends):
            self._save(msgspec.json.encode(_Written(self._writes.day, self._writes.nbytes)))
