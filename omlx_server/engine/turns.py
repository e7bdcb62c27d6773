"""Turns of models and jobs on the device. Lives on the mlx thread.

A user of the device is a model, by its number, or all jobs. Each client has an equal part of the
time, divided among the users that work for it. The user that got least of its part is next. A model
with an urgent prompt goes first for `URGENT_PART` of the time, uncharged.
"""

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import chain

from omlx_server import clock
from omlx_server.core.clients import VirtualTimes
from omlx_server.core.crash import Crash, guarded
from omlx_server.core.scheduler.order import URGENT_PART, TimeShare
from omlx_server.core.work import Work

# Least charge of a turn, so that idle users do not stay first.
_LEAST_SECONDS = 0.001


class DeviceTurns:
    """The order of turns. `parts` of the time are by user, as of the last `in_order`."""

    def __init__(self, clock: Callable[[], float] = clock.now) -> None:
        self._clock = clock
        self._times = VirtualTimes()
        self._ended_at: dict[int, float] = {}
        self._urgency = TimeShare(URGENT_PART)
        self._urgent_since: dict[int, float] = {}
        self.parts: dict[int, float] = {}

    def in_order(
        self, clients: Mapping[int, Set[bytes]], urgent_from: Mapping[int, float] | None = None
    ) -> list[int]:
        """Return users in the order of their turns. `urgent_from`: times of their urgent work."""
        at_work = {user: of_user for user, of_user in clients.items() if of_user}
        self.parts = parts_of(at_work)
        self._ended_at = {user: end for user, end in self._ended_at.items() if user in at_work}
        self._times.settle({_owner(user) for user in at_work})
        now, urgent_from = self._clock(), urgent_from or {}
        self._urgent_since = {user: t for user, t in urgent_from.items() if t <= now}
        by_time = sorted(at_work, key=lambda user: (self._times.rank(_owner(user)), user))
        # Urgent users, the longest urgent first, go before the others or, after their part, behind.
        others = math.inf if self._urgency.is_owed else -math.inf
        return sorted(by_time, key=lambda user: self._urgent_since.get(user, others))

    @contextmanager
    def turn(self, user: int) -> Iterator[float]:
        """Give a user the device. Yields the seconds that it waited with work."""
        begun = self._clock()
        yield begun - self._ended_at.get(user, begun)
        self._ended_at[user] = self._clock()
        seconds = max(_LEAST_SECONDS, self._ended_at[user] - begun)
        if user in self._urgent_since:
            self._urgency.serve(seconds)
        else:
            self._urgency.serve_others(seconds)
            self._times.charge(_owner(user), seconds / self.parts[user])


def part_of(user: int, client: bytes, clients: Mapping[int, Set[bytes]]) -> float:
    return parts_of({**clients, user: clients[user] | {client}})[user]


def parts_of(clients: Mapping[int, Set[bytes]]) -> dict[int, float]:
    """Return each user's part of the time."""
    users_of = Counter(chain.from_iterable(clients.values()))
    return {
        user: sum(1 / users_of[client] for client in of_user) / max(1, len(users_of))
        for user, of_user in clients.items()
    }


def _owner(user: int) -> tuple[bytes]:
    return (b"%d" % user,)


class Jobs:
    """Unfinished jobs. The client that is furthest behind is next; its jobs take turns."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        translate: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        """`translate` gets a job's error, and returns the one that the answer gets."""
        self._clock = clock
        self._translate = translate
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
        if isinstance(crash.error, StopIteration):
            settle(answer, crash.error.value)
        else:
            settle(answer, Crash(self._translate(crash.error)))
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
