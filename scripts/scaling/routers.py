"""Which machine gets a request: routers, by what they know."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from scripts.scaling.traffic import Piece, Request


class Loads:
    """How many requests each machine has at work or in its queue. The least and the most are known
    at once, however many machines there are."""

    def __init__(self, machines: int, source: random.Random) -> None:
        self._source = source
        self.of = [0] * machines
        self._levels: list[list[int]] = [list(range(machines))]
        self._places = list(range(machines))
        self.least = self.most = 0

    def add(self, machine: int, change: int) -> None:
        """Count one request more (`change` 1) or less (-1)."""
        level = self._levels[self.of[machine]]
        last = level.pop()
        if last != machine:
            level[self._places[machine]] = last
            self._places[last] = self._places[machine]
        self.of[machine] += change
        while len(self._levels) <= self.of[machine]:
            self._levels.append([])
        self._places[machine] = len(self._levels[self.of[machine]])
        self._levels[self.of[machine]].append(machine)
        self.least = min(self.least, self.of[machine])
        self.most = max(self.most, self.of[machine])
        while not self._levels[self.least]:
            self.least += 1
        while not self._levels[self.most]:
            self.most -= 1

    def any_of_least(self) -> int:
        """One of the machines with the fewest requests, drawn by chance."""
        return self._source.choice(self._levels[self.least])


class RoundRobin:
    """One machine after the other."""

    def __init__(self, loads: Loads) -> None:
        self._machines = len(loads.of)
        self._next = 0

    def choose(self, request: Request) -> int:
        self._next = (self._next + 1) % self._machines
        return self._next


class LeastLoaded:
    """One of the machines with the fewest requests."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def choose(self, request: Request) -> int:
        return self._loads.any_of_least()


class Sticky:
    """A session stays where its first request went, which is one of the machines with the fewest
    requests. Helpers go where the session is that they work for."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads
        self._homes: dict[int, int] = {}

    def choose(self, request: Request) -> int:
        family = request.session.family
        if family not in self._homes:
            self._homes[family] = self._loads.any_of_least()
        return self._homes[family]


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a router leaves a prefix alone. It follows one only if this is more than `threshold` of
    the prompt. sglang-router's `cache_aware` policy balances while the most and the least loaded
    machine of all are more than `absolute` requests apart, and by more than the factor `relative`.
    With `of_its_own` only the load of the machine counts that would be chosen, and of those that
    have the prefix the least loaded one is."""

    absolute: int = 64
    relative: float = 1.5
    threshold: float = 0.3
    of_its_own: bool = False


class PrefixAware:
    """Where most of the prompt went before, by an approximate radix tree of what was sent where, as
    sglang-router does. Its nodes are pieces of prompts, which stand at one place only. The tree is
    told of nothing that machines evict."""

    def __init__(self, loads: Loads, bounds: Bounds) -> None:
        self._loads, self._bounds = loads, bounds
        self._sent: dict[Piece, dict[int, None]] = {}  # machines, the last one used last
        self.tokens = 0
        """Simulated tokens of the tree's texts."""
        self.places = 0
        """How many pairs of a node and a machine there are."""

    def choose(self, request: Request) -> int:
        machine = self._choose(request)
        for piece in request.pieces:
            sent = self._sent.get(piece)
            if sent is None:
                sent = self._sent[piece] = {}
                self.tokens += len(piece.tokens)
            self.places += machine not in sent
            sent.pop(machine, None)
            sent[machine] = None
        return machine

    def _choose(self, request: Request) -> int:
        loads, bounds = self._loads, self._bounds
        if not bounds.of_its_own and self._are_apart(loads.most):
            return loads.any_of_least()
        matched = len(request.tokens)
        for piece in reversed(request.pieces):
            if piece in self._sent and matched > bounds.threshold * len(request.tokens):
                return self._of_those(self._sent[piece])
            matched -= len(piece.tokens)
        return loads.any_of_least()

    def _of_those(self, machines: dict[int, None]) -> int:
        """Which of the machines that have a prefix gets the request: the one that got the last, or
        the least loaded one, if it is not loaded too much."""
        if not self._bounds.of_its_own:
            return next(reversed(machines))
        best = min(machines, key=self._loads.of.__getitem__)
        return self._loads.any_of_least() if self._are_apart(self._loads.of[best]) else best

    def _are_apart(self, load: int) -> bool:
        """Whether a load is too far from that of the least loaded machine."""
        least, bounds = self._loads.least, self._bounds
        return load - least > bounds.absolute and load > bounds.relative * least


Router = RoundRobin | LeastLoaded | Sticky | PrefixAware
ROUTERS: dict[str, Callable[[Loads], Router]] = {
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "session sticky": Sticky,
    "prefix, bound 64": lambda loads: PrefixAware(loads, Bounds()),
    "prefix, bound 4": lambda loads: PrefixAware(loads, Bounds(absolute=4)),
    "prefix, own bound 2": lambda loads: PrefixAware(loads, Bounds(absolute=2, of_its_own=True)),
}
"""By the names that tables have. The bound of 64 is the default of sglang-router 0.3.2."""
