"""Whose turn it is: the order of prompts, and when rows go first. Pure; times in seconds.

First come those of the lowest priority class, and of these who is first by the policy
(core/policy.py). Of those who would be served next by class and key, the one that came first keeps
a share of the time: else short prompts without end would starve a long one, and while it is read
newcomers still wait for a chunk or two only.
"""

from collections.abc import Iterable, Sequence

from omlx_server.core.fairness import Fairness
from omlx_server.core.limits import Limits
from omlx_server.core.request import Request
from omlx_server.core.sequence import Prefill
from omlx_server.core.share import TimeShare

Owners = Sequence[bytes]


class Turns:
    """Knows for whom the last step worked, and learns with the next one how long it took."""

    def __init__(self, limits: Limits) -> None:
        self._decoding = TimeShare(limits.decode_share)
        self._waiting = TimeShare(limits.eldest_share, whole=True)
        self._policy = limits.policy
        self._fairness = Fairness()
        self._rows: Owners = ()
        self._prompts: Sequence[Prefill] = ()
        self._eldest: Prefill | None = None
        self._begun = 0.0
        self._reading = 0.0

    def change(self, limits: Limits) -> None:
        """Other shares from now on."""
        self._decoding.change(limits.decode_share)
        self._waiting.change(limits.eldest_share)
        self._policy = limits.policy

    def begin(self, now: float) -> None:
        """A step is planned. What the last one took, reading aside, went to its rows."""
        if self._rows:
            decoding = now - self._begun - self._reading
            self._decoding.had(decoding)
            self._fairness.give(self._rows, decoding, now)
        self._rows, self._prompts = (), ()
        self._begun, self._reading = now, 0.0

    def planned(self, rows: Owners, prompts: Sequence[Prefill]) -> None:
        """For whom the step will work."""
        self._rows, self._prompts = rows, prompts
        if not rows:
            self._decoding.forgive()

    def read(self, seconds: float) -> None:
        """How long the step took to read prompts."""
        self._reading += seconds
        owners = [prefill.request.owner for prefill in self._prompts]
        self._fairness.give(owners, seconds, self._begun)
        if self._rows:
            self._decoding.others_had(seconds)
        if self._eldest in self._prompts:
            self._waiting.had(seconds)
        elif self._eldest is not None:
            self._waiting.others_had(seconds)

    @property
    def rows_first(self) -> bool:
        """Whether rows are owed time before another prompt is read."""
        return self._decoding.is_owed

    def in_order(self, prefills: Iterable[Prefill], now: float) -> list[Prefill]:
        """Prompts as their turns come."""
        ordered = sorted(prefills, key=lambda prefill: self._order(prefill, now))
        if not ordered:
            self._eldest = None
            self._waiting.forgive()
            return ordered
        first = ordered[0].request
        peers = [p for p in ordered if _same_class(p.request, first)]
        self._eldest = eldest = min(peers, key=lambda p: (p.request.arrived, p.order))
        if self._waiting.is_owed:
            ordered.remove(eldest)
            ordered.insert(0, eldest)
        return ordered

    def _order(self, prefill: Prefill, now: float) -> tuple[float, ...]:
        request = prefill.request
        used = self._fairness.used(request.owner, now)
        return request.priority, *self._policy.rank(prefill, used)


def _same_class(one: Request, other: Request) -> bool:
    return (one.priority, one.owner) == (other.priority, other.owner)
