"""Memory for jobs, set aside before they begin, so that none waits while it holds some. Later
requests and jobs wait behind one that does not fit."""

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from omlx_server.compute.hardware import device
from omlx_server.core.memory.ledger import in_words
from omlx_server.core.memory.room import Claim
from omlx_server.engine.memory.account import MemoryShare, Waiting
from omlx_server.errors import NoMemory, Unavailable


class JobRoom:
    """A core `Room` for jobs of one model. With `patience` (seconds) a claim lets others go first,
    and may raise Unavailable."""

    def __init__(self, share: MemoryShare, patience: float = math.inf) -> None:
        self._share = share
        self._account = share.account
        self._patience = patience
        self._yields = patience < math.inf

    def check(self, nbytes: int) -> None:
        """Raise NoMemory if `nbytes` would not fit even if nothing else ran."""
        account = self._account
        if nbytes > account.largest_job():
            raise NoMemory(
                f"it needs {in_words(nbytes)}; held now: {account.held()}",
                fits_without_others=nbytes <= account.largest_job_alone(self._share),
            )

    def claim(self, needs: Sequence[int]) -> Generator[None, None, Claim]:
        """Set aside the largest of `needs` (bytes, rising) that fits. Raises NoMemory when none
        ever will."""
        begun, waiting = time.monotonic(), self._account.waiting
        me = Waiting(needs[0], self._yields)
        waiting.append(me)
        try:
            while not (count := self._fitting(needs) if self._is_next(me) else 0):
                self.check(needs[0])
                self._check_patience(time.monotonic() - begun)
                yield
        finally:
            waiting.remove(me)
        return self._aside(needs[count - 1], count)

    def _is_next(self, me: Waiting) -> bool:
        if me.yields and self._account.is_awaited:
            return False
        waiting = self._account.waiting
        return all(one.yields and not me.yields for one in waiting[: waiting.index(me)])

    def _check_patience(self, waited: float) -> None:
        if waited >= self._patience:
            raise Unavailable(
                f"no memory became free for an image within {self._patience:.0f} s",
                retry_after=math.ceil(self._patience),
            )

    def _fitting(self, needs: Sequence[int]) -> int:
        """Return the number (from 1) of the largest need that fits, or 0. While requests run,
        all but the first must fit into half of the free bytes."""
        account, most = self._account, needs[-1]
        if needs[0] > account.free() + account.spare:
            return 0  # evicting would not suffice
        if most > account.free():
            account.shrink(most - account.free())
        free = account.free()
        most = free // 2 if account.is_busy else free
        count = next((n for n in range(len(needs), 1, -1) if needs[n - 1] <= most), 0)
        count = count or int(needs[0] <= free)
        if count and needs[count - 1] + device.pool_memory() > free:
            device.drain_pool()
        return count

    @contextmanager
    def _aside(self, nbytes: int, count: int) -> Iterator[int]:
        self._account.set_aside += nbytes
        try:
            yield count
        finally:
            self._account.set_aside -= nbytes
