"""Preempts owners far ahead for a prompt far behind. Pure; owned by the scheduler."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from omlx_server.core.interval import REPORT_SECONDS, Interval
from omlx_server.core.memory.guard import Relief
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request
from omlx_server.core.scheduler.admission import Admission, AtWork
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.scheduler.predictions import STAY_SECONDS, TURN_SECONDS
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.core.scheduler.sequence import PrefillState, Sequence

# The lead, in device seconds, between owners with equally many rows, which would else swap them.
_EVEN_LEAD_SECONDS = 8.0


class Preemption:
    def __init__(
        self,
        cache: PrefixCache,
        queues: SequenceQueues,
        admission: Admission,
        prefill_order: PrefillOrder,
    ) -> None:
        self._cache = cache
        self._queues = queues
        self._admission = admission
        self._order = prefill_order
        self._look_again = Interval(REPORT_SECONDS)

    def preempt_for_next(
        self, limits: SchedulerLimits, work: Callable[[], AtWork], now: float
    ) -> None:
        """If the next prompt lacks rows or memory, preempt those ahead by more than its work,
        the furthest first."""
        queues = self._queues
        if not (queues.waiting and limits.fair and self._look_again.has_passed(now)):
            return
        self._look_again.begin(now)
        rows = [row.admitted for row in queues.running.values()]
        if now - min(rows + [p.admitted for p in queues.active], default=now) < STAY_SECONDS:
            return
        first = self._next(now)
        if first is None or self._fits(first, [], work(), limits, now):
            return
        leaving = list[Sequence | PrefillState]()
        for one in self._who_may_go(first, now):
            leaving.append(one)
            if self._fits(first, leaving, work(), limits, now):
                self._send_back(leaving)
                first.room_made = True
                return
        self._order.note_no_room(first, REPORT_SECONDS)

    def _next(self, now: float) -> PrefillState | None:
        queues = self._queues
        ordered = self._order.in_order((*queues.waiting, *queues.active), now)
        waiting = (p for p in ordered if p.handle.waiting)
        return next((p for p in waiting if not self._cache.must_wait(p.handle)), None)

    def _fits(
        self,
        first: PrefillState,
        leaving: list[Sequence | PrefillState],
        work: AtWork,
        limits: SchedulerLimits,
        now: float,
    ) -> bool:
        rows = [row for row in work.rows if row not in leaving]
        active = [prefill for prefill in work.active if prefill not in leaving]
        taken = len(rows) + sum(len(p.sequences) for p in active)
        most = self._queues.most_rows_for(first.request, limits.max_batch_size)
        if taken and taken + len(first.sequences) > most:
            return False
        return self._admission.may_admit(first, replace(work, rows=rows, active=active), now)

    def _who_may_go(self, first: PrefillState, now: float) -> list[Sequence | PrefillState]:
        at_work: list[Sequence | PrefillState] = [
            *self._queues.running.values(),
            *self._queues.active,
        ]
        going = [one for one in at_work if self._may_go(one, first, now)]
        order, other = self._order, first.request
        going.sort(
            key=lambda x: (-x.request.priority, -order.lead(x.request, other), -order.due(x))
        )
        return going

    def _may_go(self, one: Sequence | PrefillState, first: PrefillState, now: float) -> bool:
        request, order = one.request, self._order
        if now - one.admitted < STAY_SECONDS or request.priority < first.request.priority:
            return False
        if isinstance(one, Sequence) and not one.has_decoded:
            return False
        if request.priority > first.request.priority or (first.is_urgent and _is_later(one, first)):
            return True
        if isinstance(one, PrefillState) and (one.is_urgent or not order.can_begin_anew(one, now)):
            return False
        lead, lost = order.lead(request, first.request), self._lost(one)
        if not lead:
            return order.due(one) > order.due(first) + lost
        lead_needed = order.predictions.prompt(first)
        if isinstance(one, Sequence):
            is_more = self._has_more(request, first.request)
            lead_needed = min(lead_needed, TURN_SECONDS) if is_more else _EVEN_LEAD_SECONDS
        return lead >= lost + lead_needed

    def _has_more(self, request: Request, other: Request) -> bool:
        depth = 1 if request.owner != other.owner else 2
        rows = [
            *self._queues.running.values(),
            *(s for p in self._queues.active for s in p.sequences),
        ]
        rows_of = Counter(row.request.owner_path[:depth] for row in rows)
        return rows_of[request.owner_path[:depth]] > rows_of[other.owner_path[:depth]]

    def _lost(self, one: Sequence | PrefillState) -> float:
        cache = self._cache
        computed, used = (
            (one.fed, one.blocks)
            if isinstance(one, Sequence)
            else (one.computed, one.handle.blocks)
        )
        nbytes = sum(block.size.nbytes for block in used.path)
        if cache.layout.keeps and 2 * nbytes <= cache.budget.nbytes:
            return 0.0
        return self._order.predictions.pace.seconds(0, computed)

    def _send_back(self, leaving: list[Sequence | PrefillState]) -> None:
        for one in leaving:
            self._admission.note(Relief.PREEMPT)
            self._queues.preempt(one.id if isinstance(one, Sequence) else one.sequences[0].id)


def _is_later(one: Sequence | PrefillState, first: PrefillState) -> bool:
    if isinstance(one, Sequence) or one.told is None or first.told is None:
        return True
    return one.told > first.told
