"""Whose turn it is: the order of prompts, and when rows go first. Pure; times in seconds.

First come those of the lowest priority class; of these, those of the key that had least of the
machine of late, if the policy (core/policy.py) says so. Prompts of one class and key share the time
by their size: short ones (a chunk is left to read, or less), medium ones (up to eight) and long
ones. Within a size who came first is first. So nobody waits longer than it takes to read what came
before it of its size, with the share of that size; and who comes with a short prompt waits for one
chunk of a medium and one of a long prompt at most.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from omlx_server.core.fairness import MOST_CREDIT, Fairness
from omlx_server.core.limits import Limits
from omlx_server.core.request import Request
from omlx_server.core.sequence import Prefill
from omlx_server.core.share import MOST_AHEAD, Pace, Shares, TimeShare

Owners = Sequence[bytes]
Group = tuple[int, bytes]
"""Priority class and key."""

# Chunks that are left to read, at most, of a short prompt and of a medium one.
_SHORT, _MEDIUM = 1, 8
_ALL = 1 << 60
SIZES = ("short", "medium", "long")


class Turns:
    """Knows for whom the last step worked, and learns with the next one how long it took."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decoding = TimeShare(limits.decode_share)
        self._fairness = Fairness()
        self._shares: dict[Group, Shares] = {}
        self._waiting: dict[Group, set[int]] = {}
        self._sizes: dict[Prefill, int] = {}
        self._pace = Pace()
        self._rows: Owners = ()
        self._prompts: Sequence[tuple[Prefill, int]] = ()
        self._tokens = 0
        self._more = False
        self._begun = 0.0
        self._reading = 0.0

    def change(self, limits: Limits) -> None:
        """Other bounds from now on."""
        self._limits = limits
        self._decoding.change(limits.decode_share)

    def begin(self, now: float) -> None:
        """A step is planned. What the last one took, reading aside, went to its rows."""
        if self._rows:
            decoding = now - self._begun - self._reading
            self._decoding.had(decoding)
            self._fairness.give(self._rows, decoding, now)
        self._pace.took(now - self._begun, self._tokens, waiting=self._more)
        self._rows, self._prompts, self._tokens, self._more = (), (), 0, False
        self._begun, self._reading = now, 0.0

    def planned(
        self, rows: Owners, prompts: Iterable[Prefill], tokens: int = 0, *, more: bool = False
    ) -> None:
        """For whom the step will work, how many tokens of prompts it reads, and whether `more` of
        them wait."""
        self._rows, self._tokens, self._more = rows, tokens, more
        self._prompts = [(prefill, self._sizes.get(prefill, 0)) for prefill in prompts]
        if not rows:
            self._decoding.forgive()

    def read(self, seconds: float) -> None:
        """How long the step took to read prompts."""
        self._reading += seconds
        owners = [prefill.request.owner for prefill, _ in self._prompts]
        self._fairness.give(owners, seconds, self._begun)
        if self._rows:
            self._decoding.others_had(seconds)
        read = Counter((_group(prefill.request), size) for prefill, size in self._prompts)
        for (group, size), count in read.items():
            shares = self._shares.setdefault(group, Shares(self._limits.size_shares))
            waiting = self._waiting.get(group, ())
            shares.had(size, seconds * count / len(self._prompts), waiting)

    @property
    def rows_first(self) -> bool:
        """Whether rows are owed time before another prompt is read."""
        return self._decoding.is_owed

    def in_order(self, prefills: Collection[Prefill], now: float) -> list[Prefill]:
        """All prompts that wait or are being read, as their turns come."""
        self._sizes = {prefill: self.size(prefill.remaining) for prefill in prefills}
        waiting: defaultdict[Group, set[int]] = defaultdict(set)
        for prefill, size in self._sizes.items():
            waiting[_group(prefill.request)].add(size)
        self._waiting = waiting
        self._shares = {group: kept for group, kept in self._shares.items() if group in waiting}
        orders = {group: self._order(group) for group in waiting}
        self._fairness.compete({owner for _, owner in waiting}, now)
        return sorted(prefills, key=lambda prefill: self._rank(prefill, orders, now))

    def size(self, tokens: int) -> int:
        """Of a prompt of which so many are left to read: an index into SIZES."""
        chunk = self._limits.prefill_chunk_tokens
        return (tokens > _SHORT * chunk) + (tokens > _MEDIUM * chunk)

    def wait(self, request: Request, prefills: Collection[Prefill]) -> float:
        """After how many seconds it would be the turn of one who comes now, at the pace of late:
        when everything of its own size and key is read that is there, and what goes before it of
        other keys and classes. 0 where nothing was read yet."""
        group, size = _group(request), self.size(len(request.tokens) - 1)
        peers = [p for p in prefills if p.request.priority == request.priority]
        own = [p for p in peers if p.request.owner == request.owner]
        sizes = [self.size(p.remaining) for p in own]
        before = sum(p.remaining for p, its in zip(own, sizes, strict=True) if its == size)
        keys = {p.request.owner for p in peers} | {request.owner}
        shares = self._shares.get(group) or Shares(self._limits.size_shares)
        better = sum(p.remaining for p in prefills if p.request.priority < request.priority)
        tokens = better + before * len(keys) / shares.part(size, sizes)
        return tokens * self._pace.seconds_per_token

    def bound(self, request: Request, times: int, prefills: Collection[Prefill]) -> float:
        """Within how many seconds one who comes now has its first tokens, at the pace of late, if
        its prompt is read so many `times`: it is read with the share of its size, behind what is
        there of its key; towards its end with those of medium and of short ones. Whole turns, and
        what others had less of before, come on top. Nobody of a better class may come later. 0
        where nothing was read yet."""
        peers = [p for p in prefills if p.request.priority == request.priority]
        own = [p.remaining for p in peers if p.request.owner == request.owner]
        keys = len({p.request.owner for p in peers} | {request.owner})
        tokens = sum(p.remaining for p in prefills if p.request.priority < request.priority)
        mine, parts = len(request.tokens) - 1, self._limits.size_shares
        for size in range(self.size(mine) + 1):
            read = sum(min(one, self._most_read_as(size)) for one in (*own, *[mine] * times))
            tokens += math.ceil(keys * read * sum(parts) / parts[size])
        turns = MOST_CREDIT + len(SIZES) * (MOST_AHEAD + self._turn_seconds)
        pace = self._pace.seconds_per_token
        return pace and tokens * pace + keys * turns + self._limits.patience

    def _most_read_as(self, size: int) -> int:
        """How many tokens of a prompt are read while it is of a size."""
        chunk = self._limits.prefill_chunk_tokens
        return (_SHORT * chunk, _MEDIUM * chunk, _ALL)[size]

    @property
    def _turn_seconds(self) -> float:
        return self._limits.prefill_chunk_tokens * self._pace.seconds_per_token

    def _order(self, group: Group) -> list[int]:
        shares = self._shares.get(group)
        waiting = self._waiting[group]
        return shares.order(waiting) if shares else sorted(waiting)

    def _rank(
        self, prefill: Prefill, orders: dict[Group, list[int]], now: float
    ) -> tuple[float, ...]:
        request = prefill.request
        used = self._fairness.used(request.owner, now)
        place = orders[_group(request)].index(self._sizes[prefill])
        return request.priority, *self._limits.policy.rank(prefill, used, place)


def _group(request: Request) -> Group:
    return request.priority, request.owner
