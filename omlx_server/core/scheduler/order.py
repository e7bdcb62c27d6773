"""Whose turn it is: the order of prompts, and when rows go first. Pure; times in seconds.

Prompts of the lowest priority class come first; among these, prompts of the API key that had least
of the machine of late, if the policy (core/scheduler/policy.py) says so. Prompts of one class and
key share the time by their size: short ones (at most one chunk is left to prefill), medium ones (at
most eight) and long ones. Within a size the first to arrive is first. So a prompt waits only as
long as it takes to prefill the earlier ones of its size with that size's share of the time; a short
prompt that comes waits for one chunk of a medium and one of a long prompt at most.

Shares are counted in seconds, not in tokens: the time of a chunk differs a hundredfold between
machines, and tenfold between the head and the depth of one prompt. In this file, to read a prompt
is to prefill it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from omlx_server.core.request import Request
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.prefill_times import Pace
from omlx_server.core.scheduler.sequence import Prefill
from omlx_server.core.step import Chunk

Owners = Sequence[bytes]
Group = tuple[int, bytes]
"""Priority class and API key of prompts that share the time by their size."""

# Chunks that are left to read, at most, of a short prompt and of a medium one.
_SHORT, _MEDIUM = 1, 8
_ALL = 1 << 60
# Steps are planned while the chunks of one before run, and while others wait for them.
_MOST_UNREAD = 2
SIZES = ("short", "medium", "long")

_ROUNDING = 0.999
# Seconds that a size owes the others at most, if it was served while they could not be.
_MOST_AHEAD = 10.0
# What a key had counts half after so long, and is forgotten when so few seconds are left of it.
_HALF_LIFE_SECONDS = 30.0
_NOTHING = 1e-6
# A key that comes to a busy machine goes first for so many seconds at most, however little it had.
_MOST_CREDIT = 5.0


class TimeShare:
    """Keeps a `share` (0 to below 1) of the time for one of two sides. Each second of the other
    side makes a debt of share / (1 - share) seconds, and while there is a debt it is that side's
    turn. The debt never exceeds what the other side's last turn makes or that turn itself,
    whichever is longer: unused time is not saved up."""

    def __init__(self, share: float) -> None:
        self._debt = 0.0
        self.change(share)

    def change(self, share: float) -> None:
        """Keep another `share` from now on."""
        self._debt_per_second = share / (1.0 - share)

    def others_had(self, seconds: float) -> None:
        """Note that the other side was served for `seconds`: the debt grows."""
        if seconds <= 0:
            return
        most = seconds * max(1.0, self._debt_per_second)
        self._debt = min(self._debt + seconds * self._debt_per_second, most)

    def had(self, seconds: float) -> None:
        """Note that the side with the share was served for `seconds`: the debt shrinks, at most
        to 0."""
        self._debt = max(0.0, self._debt - max(0.0, seconds))

    def forgive(self) -> None:
        """Cancel the debt, because nobody is there any more to whom it is owed."""
        self._debt = 0.0

    @property
    def is_owed(self) -> bool:
        return self._debt > 0.0


class Shares:
    """Several sides, numbered from 0, share the time by their `parts`, in whole turns.

    Side 0 is served by default. Another side is served when it is owed as many seconds as its last
    turn took: so it keeps its part however much side 0 wants, and side 0 waits for one turn of each
    of the others at most. A side that does not wait is owed nothing. (Deficit round robin, in
    seconds, by M. Shreedhar and G. Varghese.)
    """

    def __init__(self, parts: Sequence[float]) -> None:
        self._parts = tuple(parts)
        self._owed = [0.0] * len(parts)
        self._turns = [0.0] * len(parts)

    def order(self, waiting: Collection[int]) -> list[int]:
        """The sides that wait, in the order of their turns."""
        owed = [who for who in waiting if who and self._is_owed_a_turn(who)]
        owed.sort(key=lambda who: -self._owed[who])
        return [*owed, *sorted(set(waiting) - set(owed))]

    def had(self, who: int, seconds: float, waiting: Collection[int]) -> None:
        """Note that side `who` was served for `seconds` while the sides `waiting` were there: they
        are owed their parts of it."""
        if seconds <= 0:
            return
        self._turns[who] = seconds
        for one in range(len(self._parts)):
            if one == who:
                owed = self._owed[one] - seconds * (1 - self.part(one, waiting))
            elif one in waiting:
                owed = self._owed[one] + seconds * self.part(one, {*waiting, who})
                owed = min(owed, self._turns[one] + max(self._turns))
            else:
                owed = min(self._owed[one], 0.0)
            self._owed[one] = max(-_MOST_AHEAD, owed)

    def _is_owed_a_turn(self, who: int) -> bool:
        return 0 < self._owed[who] >= self._turns[who] * _ROUNDING

    def part(self, who: int, waiting: Collection[int]) -> float:
        """The share of the time (0 to 1) that side `who` has while the sides `waiting` wait."""
        return self._parts[who] / sum(self._parts[one] for one in {*waiting, who})


@dataclass(slots=True)
class _Used:
    seconds: float
    at: float


class Fairness:
    """Seconds of the machine that each owner (an API key; one for all where there are none) had of
    late, so that a key with many requests does not keep others waiting. They decay, so that a key
    that was busy is not punished for long."""

    def __init__(self) -> None:
        self._used: dict[bytes, _Used] = {}

    def give(self, owners: Owners, seconds: float, now: float) -> None:
        """Add `seconds` of the machine, in equal parts, to the owners of the sequences that were
        served; an owner is named once for each sequence."""
        if not owners or seconds <= 0:
            return
        for owner in set(owners):
            used = self.used(owner, now) + seconds * owners.count(owner) / len(owners)
            self._used[owner] = _Used(used, now)
        if len(self._used) > 2 * len(owners) + 64:
            self._forget(now)

    def compete(self, owners: Collection[bytes], now: float) -> None:
        """Bound the lead of owners that want the machine now: none of them counts as served more
        than `_MOST_CREDIT` seconds less than the one that was served most."""
        if len(owners) < 2:
            return
        least = max(self.used(owner, now) for owner in owners) - _MOST_CREDIT
        for owner in owners:
            if self.used(owner, now) < least:
                self._used[owner] = _Used(least, now)

    def used(self, owner: bytes, now: float) -> float:
        """The seconds that an owner had of late; 30 seconds later each counts half."""
        known = self._used.get(owner)
        if known is None:
            return 0.0
        return known.seconds * math.exp2(-max(0.0, now - known.at) / _HALF_LIFE_SECONDS)

    def owners(self, now: float) -> set[bytes]:
        """The owners that were served of late."""
        return {owner for owner in self._used if self.used(owner, now) > _NOTHING}

    def _forget(self, now: float) -> None:
        used = {owner: self.used(owner, now) for owner in self._used}
        self._used = {o: _Used(seconds, now) for o, seconds in used.items() if seconds > _NOTHING}


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a step does: owners of the rows that decode and of the prompts that it reads, groups and
    sizes of these, their chunks, and whether `more` prompts wait."""

    rows: Owners = ()
    prompts: Owners = ()
    sizes: Sequence[tuple[Group, int]] = ()
    chunks: tuple[Chunk, ...] = ()
    more: bool = False


class PrefillOrder:
    """Puts prompts into order by priority class, API key and size, and counts the time of each step
    for the keys and sizes that it served."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decoding = TimeShare(limits.decode_share)
        self._fairness = Fairness()
        self._shares: dict[Group, Shares] = {}
        self._waiting: dict[Group, set[int]] = {}
        self._sizes: dict[Prefill, int] = {}
        self._pace = Pace()
        self._planned: list[_Planned] = []  # those that may read, and the newest at the end
        self._read: Sequence[Chunk] = ()
        self._begun = 0.0
        self._reading = 0.0

    def change(self, limits: Limits) -> None:
        """Use other `limits` from now on."""
        self._limits = limits
        self._decoding.change(limits.decode_share)

    def begin(self, now: float) -> None:
        """Note that a step is being planned: the time since the last one was planned, without the
        prefills that were read in it, went to that one's rows."""
        last = self._planned[-1] if self._planned else _Planned()
        if last.rows:
            decoding = now - self._begun - self._reading
            self._decoding.had(decoding)
            self._fairness.give(last.rows, decoding, now)
        self._pace.took(now - self._begun, self._reading, self._read, waiting=last.more)
        self._begun, self._reading, self._read = now, 0.0, ()

    def planned(
        self,
        rows: Owners,
        prompts: Iterable[Prefill],
        chunks: Sequence[Chunk] = (),
        *,
        more: bool = False,
    ) -> None:
        """Note what the step does: owners of the rows that decode, prompts and their chunks that it
        reads, and whether `more` prompts wait."""
        reads = list(prompts)  # which may have lost their sequences when they are read
        sizes = [(_group(prefill.request), self._sizes.get(prefill, 0)) for prefill in reads]
        owners = [prefill.request.owner for prefill in reads]
        unread = [step for step in self._planned if step.chunks][-_MOST_UNREAD:]
        self._planned = [*unread, _Planned(rows, owners, sizes, tuple(chunks), more)]
        if not rows:
            self._decoding.forgive()

    def read(self, chunks: tuple[Chunk, ...], seconds: float) -> None:
        """Note that these chunks, of the newest step or of one shortly before it, took `seconds`,
        and count them for the keys and sizes of their prompts."""
        [step] = [step for step in self._planned if step.chunks == chunks][-1:]
        if step is not self._planned[-1]:
            self._planned.remove(step)
        self._reading += seconds
        self._read = (*self._read, *chunks)
        self._fairness.give(step.prompts, seconds, self._begun)
        if step.rows:
            self._decoding.others_had(seconds)
        for (group, size), count in Counter(step.sizes).items():
            shares = self._shares.setdefault(group, Shares(self._limits.size_shares))
            waiting = self._waiting.get(group, ())
            shares.had(size, seconds * count / len(step.prompts), waiting)

    @property
    def is_empty(self) -> bool:
        """Whether no prompt waited or was being read when it last put any into order."""
        return not self._sizes

    @property
    def rows_first(self) -> bool:
        """Whether rows that decode are owed time before another chunk is read."""
        return self._decoding.is_owed

    def in_order(self, prefills: Collection[Prefill], now: float) -> list[Prefill]:
        """`prefills`, all that wait or are being read, in the order of their turns."""
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
        """The size, as an index into SIZES, of a prompt with `tokens` tokens left to read."""
        chunk = self._limits.prefill_chunk_tokens
        return (tokens > _SHORT * chunk) + (tokens > _MEDIUM * chunk)

    def wait(self, request: Request, prefills: Collection[Prefill]) -> float:
        """Seconds until the turn of a request that comes now, at the pace of late: all of better
        classes is read, then all of its own key and size, with that size's share of the time and
        an equal share for each key of its class. 0 where nothing was read yet."""
        queue = _Before(request, prefills)
        size = self.size(len(request.tokens) - 1)
        sizes = [self.size(p.remaining) for p in queue.own]
        before = [p for p, its in zip(queue.own, sizes, strict=True) if its == size]
        shares = self._shares.get(_group(request)) or Shares(self._limits.size_shares)
        part = shares.part(size, sizes) / len(queue.keys)
        return self._pace.beside(0) * (self._all(queue.better) + self._all(before) / part)

    def bound(
        self, request: Request, times: int, prefills: Collection[Prefill], now: float
    ) -> float:
        """An upper bound of the seconds until a request that comes now has its first tokens, at the
        pace of late, if its prompt is read `times` times. Its prompt and those of its key before it
        are read with the share of their size, which is a smaller one towards their end, and each
        key of its class has an equal share. If it has more than a chunk it also waits for prompts
        of other keys of no more than its size, which may not fit beside it. Whole turns, the credit
        of other keys, `Limits.patience` and one prompt that has the memory to itself come on top.
        Later requests of a better class are not counted. 0 where the pace is not known yet."""
        if not self._pace.is_known:
            return 0.0
        queue, parts = _Before(request, prefills), self._limits.size_shares
        keys = len(queue.keys | self._fairness.owners(now))
        mine = len(request.tokens) - 1
        seconds = self._all(queue.better) + max((self._all([p]) for p in prefills), default=0.0)
        if self.size(mine):
            seconds += self._all(
                p for p in queue.others if self.size(p.remaining) <= self.size(mine)
            )
        for size in range(self.size(mine) + 1):
            before = sum(self._last(p.target, p.remaining, size) for p in queue.own)
            own = times * self._last(mine, mine, size)
            seconds += (before + own) * keys * sum(parts) / parts[size]
        seconds *= self._pace.beside(self._limits.decode_share)
        turn = self._turn(max((mine, *(p.target for p in prefills))))
        turns = _MOST_CREDIT + len(SIZES) * (_MOST_AHEAD + turn)
        return seconds + keys * turns + self._limits.patience

    def _all(self, prefills: Iterable[Prefill]) -> float:
        """Seconds to read what is left of these prompts, if nothing else is done."""
        return sum(self._last(p.target, p.remaining, len(SIZES) - 1) for p in prefills)

    def _last(self, target: int, remaining: int, size: int) -> float:
        """Seconds to read the part of a prompt's remaining tokens in which it is of a size."""
        chunk = self._limits.prefill_chunk_tokens
        most = (_SHORT * chunk, _MEDIUM * chunk, _ALL)[size]
        return self._pace.seconds(target - min(remaining, most), target)

    def _turn(self, depth: int) -> float:
        """Seconds to read the largest chunk that ends at token `depth`."""
        return self._pace.seconds(depth - min(self._limits.chunks.alone, depth), depth)

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


class _Before:
    """The prompts that wait or are read when a request comes: those of `better` classes, those of
    its `own` class and key, `others` of its class; and the `keys` of its class, its own
    included."""

    def __init__(self, request: Request, prefills: Collection[Prefill]) -> None:
        peers = [p for p in prefills if p.request.priority == request.priority]
        self.own = [p for p in peers if p.request.owner == request.owner]
        self.others = [p for p in peers if p.request.owner != request.owner]
        self.better = [p for p in prefills if p.request.priority < request.priority]
        self.keys = {request.owner, *(p.request.owner for p in peers)}


def _group(request: Request) -> Group:
    return request.priority, request.owner
