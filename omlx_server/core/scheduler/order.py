"""The order of prompts. Pure; times in seconds.

Clients and their conversations have virtual times: the device seconds of their work. The order is

    1. by priority class
    2. urgent prompts, by the time told for their first token: they get half of the time
    3. by the virtual time of their client
    4. of one client, by the virtual time of their conversation after its next turn
    5. of one conversation, by `due`: when they came, plus `_STRETCH` times their predicted work
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from omlx_server.core.request import Request
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.predictions import TURN_SECONDS, Predictions
from omlx_server.core.scheduler.sequence import PrefillState
from omlx_server.core.scheduler.sequence import Sequence as Row
from omlx_server.core.step import Chunk
from omlx_server.core.virtual_times import Owner, VirtualTimes

SIZES = ("short", "medium", "long")
# The most chunks of a short and of a medium prompt.
_SHORT, _MEDIUM = 1, 8
# Others of its owner may pass a prompt for so many times its own work.
_STRETCH = 8.0
# The told wait: so many times the work before, and so many seconds.
_TOLD, _TOLD_MORE = 3.0, 5.0
# A prompt is urgent when so many times the work up to it, and seconds, just fit.
_URGENT, _URGENT_MORE = 2.0, 1.5
_URGENT_SHARE = 0.5
URGENT_PART = 0.75
"""The part of the device that a model with an urgent prompt gets beside others without one."""
# Steps with chunks that may be unread while the next is planned.
_MOST_UNREAD = 2


class TimeShare:
    """Keeps a `share` (0 to below 1) of the time for one side. Each second of the other makes a
    debt of share / (1 - share) seconds, bounded by its last turn."""

    def __init__(self, share: float) -> None:
        self._debt = 0.0
        self.change(share)

    def change(self, share: float) -> None:
        self._debt_per_second = share / (1.0 - share)

    def serve_others(self, seconds: float) -> None:
        if seconds <= 0:
            return
        most = seconds * max(1.0, self._debt_per_second)
        self._debt = min(self._debt + seconds * self._debt_per_second, most)

    def serve(self, seconds: float) -> None:
        self._debt = max(0.0, self._debt - max(0.0, seconds))

    def forgive(self) -> None:
        self._debt = 0.0

    @property
    def is_owed(self) -> bool:
        return self._debt > 0.0


@dataclass(frozen=True, slots=True)
class _Planned:
    rows: Sequence[Row] = ()
    prompts: Sequence[Row] = ()
    chunks: tuple[Chunk, ...] = ()


class PrefillOrder:
    """Orders prompts, tells them their longest waits, and charges owners."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self.predictions = Predictions(limits)
        self._decoding = TimeShare(limits.decode_share)
        self._urgency = TimeShare(_URGENT_SHARE)
        self._times = VirtualTimes()
        self._planned: list[_Planned] = []  # with chunks under way; the newest last
        self._begun = 0.0
        self._reading = 0.0
        self.urgent_from = math.inf
        """From when a prompt is urgent, as was seen when it last put any into order."""
        self.is_empty = True
        """Whether no prompt was there when it last put any into order."""

    def change(self, limits: SchedulerLimits) -> None:
        self._limits = self.predictions.limits = limits
        self._decoding.change(limits.decode_share)

    def set_part(self, part: float, away: float = 0.0) -> None:
        self.predictions.part = part
        self._begun += away

    # -- the time of steps -------------------------------------------------------------------

    def begin_step(self, now: float) -> None:
        """Charge the time since the last step to its rows."""
        rows = self._planned[-1].rows if self._planned else ()
        decoding = now - self._begun - self._reading
        if rows and decoding > 0:
            self._decoding.serve(decoding)
            self._charge_rows(rows, decoding)
            self.predictions.note_decode(decoding, len(rows))
        self._begun, self._reading = now, 0.0

    def note_plan(
        self, rows: Sequence[Row], prompts: Sequence[PrefillState], chunks: Sequence[Chunk] = ()
    ) -> None:
        firsts = [prefill.sequences[0] for prefill in prompts]
        unread = [step for step in self._planned if step.chunks][-_MOST_UNREAD:]
        self._planned = [*unread, _Planned(rows, firsts, tuple(chunks))]
        if chunks:
            seconds = self.predictions.step(chunks)
            is_urgent = any(prefill.is_urgent for prefill in prompts)
            (self._urgency.serve if is_urgent else self._urgency.serve_others)(seconds)
        if not rows:
            self._decoding.forgive()

    def charge_chunks(self, chunks: tuple[Chunk, ...], seconds: float) -> None:
        [step] = [step for step in self._planned if step.chunks == chunks][-1:]
        if step is not self._planned[-1]:
            self._planned.remove(step)
        self._reading += seconds
        self.predictions.pace.note_chunks(seconds, chunks)
        if step.rows:
            self._decoding.serve_others(seconds)
        tokens = [len(chunk.tokens) for chunk in chunks] or [1] * len(step.prompts)
        each = max(0.0, seconds) / max(1, sum(tokens))
        parts = zip(step.prompts, tokens, strict=True)
        self._charge([(first, each * count) for first, count in parts])

    def _charge_rows(self, rows: Sequence[Row], seconds: float) -> None:
        each, token = seconds / 2 / len(rows), seconds / 2 / max(1, sum([r.fed for r in rows]))
        self._charge([(row, each + token * row.fed) for row in rows])

    def _charge(self, served: Sequence[tuple[Row, float]]) -> None:
        parts = dict[Owner, float]()
        for row, seconds in served:
            request = row.request
            path = request.owner, request.conversation  # `owner_path`, without a call for each row
            parts[path] = parts.get(path, 0.0) + seconds
        for owner, part in parts.items():
            self._times.charge(owner, part)

    def note_no_room(self, first: PrefillState, seconds: float) -> None:
        if not first.is_urgent:
            self._urgency.serve_others(seconds)

    @property
    def rows_first(self) -> bool:
        return self._decoding.is_owed

    # -- the order ---------------------------------------------------------------------------

    def in_order(self, prefills: Collection[PrefillState], now: float) -> list[PrefillState]:
        self.is_empty = not prefills
        if not self._limits.fair:
            return sorted(prefills, key=lambda p: (p.request.priority, p.request.arrived, p.order))
        rows = self._planned[-1].rows if self._planned else ()
        requests = [p.request for p in prefills] + [row.request for row in rows]
        self._times.settle({request.owner_path for request in requests})
        for prefill in prefills:
            self._enter(prefill, prefills, now)
        self._find_urgent(prefills, now)
        in_turn = sorted(prefills, key=lambda p: (self.due(p), p.order))
        return sorted(in_turn, key=self._ranks(in_turn).__getitem__)

    def _enter(self, prefill: PrefillState, prefills: Collection[PrefillState], now: float) -> None:
        first = prefill.sequences[0]
        if first.came is None:
            came = self._times.rank(first.request.owner_path)[-1]
            for sequence in prefill.sequences:
                sequence.came = came
        if prefill.told is None and self.predictions.are_known:
            prefill.tell(now + self.longest_wait(prefill.request, prefills))

    def longest_wait(self, request: Request, prefills: Collection[PrefillState]) -> float:
        """Return the longest wait told for a first token, 0 where unknown."""
        if not self.predictions.are_known:
            return 0.0
        return _TOLD * self.backlog(request, prefills) + _TOLD_MORE

    def backlog(self, request: Request, prefills: Collection[PrefillState]) -> float:
        """Return the seconds to all first tokens up to this class."""
        before = (p for p in prefills if p.request.priority <= request.priority)
        return sum(map(self.predictions.first_token, before)) / self.predictions.part

    def _find_urgent(self, prefills: Collection[PrefillState], now: float) -> None:
        deadlines = [(p.request.priority, p.told, p) for p in prefills if p.told is not None]
        deadlines.sort(key=lambda one: one[:2])
        self.urgent_from, work, latest = math.inf, 0.0, dict[int, float]()
        for priority, until, prefill in deadlines:
            work += self.predictions.first_token(prefill)
            begins = self._latest_start(work, until)
            self.urgent_from = min(self.urgent_from, begins)
            if begins <= now:
                latest[priority] = until
        for priority, until, prefill in deadlines:
            prefill.is_urgent |= until <= latest.get(priority, -math.inf)

    def _ranks(self, prefills: Sequence[PrefillState]) -> dict[PrefillState, tuple[float, ...]]:
        places = dict[tuple[int, Owner], tuple[float, float]]()
        ranks = dict[PrefillState, tuple[float, ...]]()
        for prefill in prefills:
            priority, owner = prefill.request.priority, prefill.request.owner_path
            if (priority, owner) not in places:
                client, conversation = self._times.rank(owner)
                turn = min(self.predictions.prompt(prefill), TURN_SECONDS)
                places[priority, owner] = client, conversation + turn
            ranks[prefill] = priority, 1, *places[priority, owner]
            if prefill.is_urgent and prefill.told is not None:
                ranks[prefill] = priority, 0 if self._urgency.is_owed else 2, prefill.told
        return ranks

    def can_begin_anew(self, prefill: PrefillState, now: float) -> bool:
        work = self.predictions.first_token(prefill, anew=True)
        return prefill.told is None or self._latest_start(work, prefill.told) > now

    def _latest_start(self, work: float, until: float) -> float:
        return until - (_URGENT * work + _URGENT_MORE) / max(self.predictions.part, URGENT_PART)

    def due(self, work: PrefillState | Row) -> float:
        """Return the sort key among the work of one owner."""
        if isinstance(work, Row):
            return (work.came or 0.0) + _STRETCH * self.predictions.answer(work)
        first = work.sequences[0]
        return (first.came or 0.0) + _STRETCH * self.predictions.whole(work)

    def lead(self, request: Request, other: Request) -> float:
        return self._times.lead(request.owner_path, other.owner_path)

    def size(self, tokens: int) -> int:
        chunk = self._limits.prefill_chunk_tokens
        return (tokens > _SHORT * chunk) + (tokens > _MEDIUM * chunk)
