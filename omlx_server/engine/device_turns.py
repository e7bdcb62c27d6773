"""Turns of models and jobs on the device. Lives on the mlx thread.

A user of the device is a model, by its number, or all jobs. Each client has an equal part of the
time, divided among the users that work for it. The user that got least of its part is next. A model
with an urgent prompt goes first for `URGENT_PART` of the time, uncharged.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import chain

from omlx_server.core.scheduler.order import URGENT_PART, TimeShare
from omlx_server.core.virtual_times import VirtualTimes

# Least charge of a turn, so that idle users do not stay first.
_LEAST_SECONDS = 0.001


class DeviceTurns:
    """The order of turns. `parts` of the time are by user, as of the last `in_order`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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
