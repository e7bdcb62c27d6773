"""Turns of models and jobs on the device. Lives on the mlx thread.

Each client has an equal part, divided among its models and all jobs. The user that got least of its
part is next. A model with an urgent prompt goes first for `URGENT_PART` of the time, uncharged.
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
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times = VirtualTimes()
        self._ended: dict[int, float] = {}
        self._urgency = TimeShare(URGENT_PART)
        self._urgent: dict[int, float] = {}
        self.parts: dict[int, float] = {}

    def in_order(
        self, clients: Mapping[int, Set[bytes]], urgent_from: Mapping[int, float] | None = None
    ) -> list[int]:
        """Return users in the order of their turns. `urgent_from`: times of their urgent work."""
        clients = {user: those for user, those in clients.items() if those}
        self.parts = parts_of(clients)
        self._ended = {user: end for user, end in self._ended.items() if user in clients}
        self._times.settle({_owner(user) for user in clients})
        now, others = self._clock(), math.inf if self._urgency.is_owed else -math.inf
        self._urgent = {user: at for user, at in (urgent_from or {}).items() if at <= now}
        in_order = sorted(clients, key=lambda user: (self._times.rank(_owner(user)), user))
        return sorted(in_order, key=lambda user: self._urgent.get(user, others))

    @contextmanager
    def turn(self, user: int) -> Iterator[float]:
        """Give a user the device. Yields the seconds that it waited with work."""
        begun = self._clock()
        yield begun - self._ended.get(user, begun)
        self._ended[user] = self._clock()
        seconds = max(_LEAST_SECONDS, self._ended[user] - begun)
        if user in self._urgent:
            self._urgency.serve(seconds)
        else:
            self._urgency.serve_others(seconds)
            self._times.charge(_owner(user), seconds / self.parts[user])


def part_of(user: int, client: bytes, clients: Mapping[int, Set[bytes]]) -> float:
    return parts_of({**clients, user: clients[user] | {client}})[user]


def parts_of(clients: Mapping[int, Set[bytes]]) -> dict[int, float]:
    uses = Counter(chain.from_iterable(clients.values()))
    return {
        user: sum(1 / uses[client] for client in those) / max(1, len(uses))
        for user, those in clients.items()
    }


def _owner(user: int) -> tuple[bytes]:
    return (b"%d" % user,)
