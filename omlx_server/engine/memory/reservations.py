"""Memory for jobs, set aside before they begin, so that none waits while it holds some. Later
requests and jobs wait behind one that does not fit."""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from omlx_server import clock
from omlx_server.compute.hardware import device
from omlx_server.core.memory.ledger import in_words
from omlx_server.core.memory.room import Boundless, Claim, Room
from omlx_server.engine.memory.account import MemoryShare, MemoryWatch, Waiting
from omlx_server.errors import NoMemory, Unavailable


def job_room(watch: MemoryWatch | None, patience: float = math.inf) -> Room:
    return Boundless() if watch is None else JobRoom(watch.share, patience)


class JobRoom:
    """Room for jobs of one model. With `patience` (seconds) others go first."""

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
        """Set aside the largest of `needs` (bytes, rising) that fits. Raises NoMemory."""
        begun, waiting = clock.now(), self._account.waiting
        me = Waiting(needs[0], self._yields)
        waiting.append(me)
        fitting = 0  # the number, from 1, of the need that fits
        try:
            while not fitting:
                if self._is_next(me):
                    fitting = self._make_room_for_largest(needs)
                if not fitting:
                    self.check(needs[0])
                    self._check_patience(clock.now() - begun)
                    yield
        finally:
            waiting.remove(me)
        return self._hold(needs[fitting - 1], fitting)

    def _is_next(self, me: Waiting) -> bool:
        if me.yields and self._account.has_waiting_requests:
            return False
        # A job may pass only jobs that yield, and only if it does not yield itself.
        waiting = self._account.waiting
        return all(job.yields and not me.yields for job in waiting[: waiting.index(me)])

    def _check_patience(self, waited: float) -> None:
        if waited >= self._patience:
            raise Unavailable(
                f"no memory became free for an image within {self._patience:.0f} s",
                retry_after=math.ceil(self._patience),
            )

    def _make_room_for_largest(self, needs: Sequence[int]) -> int:
        """Evict what the largest need lacks. Return the number (from 1) of the largest need that
        fits, or 0. While requests run, all but the first must fit into half of the free bytes."""
        account = self._account
        if account.pressure.taken:
            needs = needs[:1]  # the machine needs what a larger one would evict
        if needs[0] > account.free() + account.spare:
            return 0  # evicting would not suffice
        lacking = needs[-1] - account.free()
        if lacking > 0:
            account.shrink(lacking)
        free = account.free()
        usable = free // 2 if account.is_busy else free
        fitting = next((n for n in range(len(needs), 1, -1) if needs[n - 1] <= usable), 0)
        if not fitting and needs[0] <= free:
            fitting = 1
        if fitting and needs[fitting - 1] + device.pool_memory() > free:
            device.drain_pool()
        return fitting

    @contextmanager
    def _hold(self, nbytes: int, number: int) -> Iterator[int]:
        self._account.set_aside += nbytes
        try:
            yield number
        finally:
            self._account.set_aside -= nbytes
