"""Jobs: work on the mlx thread that is no sequence, such as embeddings or scores of a prompt. It is
done in slices between steps, so that streams go on beside it. Jobs take turns.
"""

from collections import deque
from concurrent.futures import Future

from omlx_server.core.crash import Crash, guarded
from omlx_server.core.work import Work


class Jobs:
    """The jobs that are not done yet. Owned by the mlx thread."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Work[object], Future[object]]] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, work: Work[object], answer: Future[object]) -> None:
        """Add a job, whose result the future `answer` gets. An exception ends this job only, and is
        raised there. Cancelling the future ends the job at its next turn."""
        self._jobs.append((work, answer))

    def turn(self) -> bool:
        """Do a slice of the job that has waited longest, if there is one. True if it has ended."""
        if not self._jobs:
            return False
        work, answer = self._jobs.popleft()
        if answer.cancelled():
            work.close()
            return True
        done = guarded(work.send, None)
        if not isinstance(done, Crash):
            self._jobs.append((work, answer))
            return False
        settle(answer, done.error.value if isinstance(done.error, StopIteration) else done)
        return True

    def end(self, error: Exception) -> None:
        """End all jobs that are left: their futures raise `error`."""
        while self._jobs:
            work, answer = self._jobs.popleft()
            work.close()
            settle(answer, Crash(error))


def settle(answer: Future[object], outcome: object) -> None:
    """Give an outcome to a future, unless it was cancelled: the exception of a Crash, else the
    result."""
    if not answer.set_running_or_notify_cancel():
        return
    if isinstance(outcome, Crash):
        answer.set_exception(outcome.error)
    else:
        answer.set_result(outcome)
