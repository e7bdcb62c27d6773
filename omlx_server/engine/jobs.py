"""Jobs in slices between steps on the mlx thread, such as embeddings."""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future

from omlx_server.core.crash import Crash, guarded
from omlx_server.core.virtual_times import VirtualTimes
from omlx_server.core.work import Work


class Jobs:
    """Unfinished jobs. The client that is furthest behind is next; its jobs take turns."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._jobs = defaultdict[bytes, deque[tuple[Work[object], Future[object]]]](deque)
        self._times = VirtualTimes()

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    @property
    def clients(self) -> set[bytes]:
        return set(self._jobs)

    def add(self, work: Work[object], answer: Future[object], client: bytes = b"") -> None:
        """Add a job; `answer` gets its result or exception. Cancelling the future ends the job."""
        self._jobs[client].append((work, answer))

    def run_slice(self) -> bool:
        """Run a slice of the next job, if any. Return whether it has ended."""
        if not self._jobs:
            return False
        self._times.settle({(client,) for client in self._jobs})
        client = min(self._jobs, key=lambda client: self._times.rank((client,)))
        work, answer = self._pop_next(client)
        if answer.cancelled():
            work.close()
            return True
        begun = self._clock()
        crash = guarded(work.send, None)
        self._times.charge((client,), self._clock() - begun)
        if not isinstance(crash, Crash):  # only this slice has ended
            self.add(work, answer, client)
            return False
        # A generator returns its result by StopIteration.
        result = crash.error.value if isinstance(crash.error, StopIteration) else crash
        settle(answer, result)
        return True

    def end(self, error: Exception) -> None:
        while self._jobs:
            work, answer = self._pop_next(next(iter(self._jobs)))
            work.close()
            settle(answer, Crash(error))

    def _pop_next(self, client: bytes) -> tuple[Work[object], Future[object]]:
        job = self._jobs[client].popleft()
        if not self._jobs[client]:
            del self._jobs[client]
        return job


def settle(answer: Future[object], outcome: object) -> None:
    """Set a future, unless cancelled, to a result or a Crash's exception."""
    if not answer.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Crash):
        answer.set_exception(outcome.error)
    else:
        answer.set_result(outcome)
