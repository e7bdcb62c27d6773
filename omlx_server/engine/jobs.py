"""Work on the mlx thread that is no sequence: embeddings, scores of a prompt. It is done in slices,
one between two steps, so that streams go on beside it. Jobs take turns.
"""

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from omlx_server.core.guard import Crash, guarded
from omlx_server.core.work import Work


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    work: Work[object]
    answer: Future[object]


class Jobs:
    """Those that are not done. Owned by the mlx thread."""

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, work: Work[object], answer: Future[object]) -> None:
        """What raises in it ends it alone. Cancelling the future ends it within a slice."""
        self._jobs.append(_Job(work, answer))

    def turn(self) -> bool:
        """Do a slice of the job that has waited longest, if there is one. Whether it has ended."""
        if not self._jobs:
            return False
        job = self._jobs.popleft()
        if job.answer.cancelled():
            job.work.close()
            return True
        done = guarded(lambda: _slice(job.work))
        if isinstance(done, Crash):
            settle(job.answer, error=done.error)
        elif done is None:
            self._jobs.append(job)
            return False
        else:
            settle(job.answer, result=done[0])
        return True

    def end(self, error: Exception) -> None:
        """All that are left end with an error."""
        while self._jobs:
            job = self._jobs.popleft()
            job.work.close()
            settle(job.answer, error=error)


def _slice(work: Work[object]) -> tuple[object] | None:
    """The result, once there is one."""
    try:
        next(work)
    except StopIteration as end:
        return (end.value,)
    return None


def settle(
    answer: Future[object], *, result: object = None, error: BaseException | None = None
) -> None:
    """Tell whoever waits, unless nobody does any more."""
    if not answer.set_running_or_notify_cancel():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
