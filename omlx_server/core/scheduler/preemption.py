"""Preempts owners far ahead for a prompt far behind. Pure; owned by the scheduler."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from omlx_server.core.interval import REPORT_SECONDS, Interval
from omlx_server.core.memory.guard import Relief
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.memory_admission import Admission, AtWork
from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.scheduler.predictions import STAY_SECONDS, TURN_SECONDS
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.core.scheduler.sequence import PrefillState, Sequence

# The lead, in device seconds, between owners with equally many rows, which would else swap them.
_EVEN_LEAD_SECONDS = 8.0


class Preemption:
    """Makes room for the next prompt. A victim is a row, or a prompt that is being prefilled."""

    def __init__(
        self, cache: PrefixCache, queues: SequenceQueues, admission: Admission, order: PrefillOrder
    ) -> None:
        self._cache = cache
        self._queues = queues
        self._admission = admission
        self._order = order
        self._looks = Interval(REPORT_SECONDS)

    def preempt_for_next(
        self, limits: SchedulerLimits, work: Callable[[], AtWork], now: float
    ) -> None:
        """Preempt those ahead by more than its work if the next prompt lacks rows or memory."""
        queues = self._queues
        if not (queues.waiting and limits.fair and self._looks.has_passed(now)):
            return
        if self._admission.is_paused:
            return
        self._looks.begin(now)
        admitted = [one.admitted for one in self._at_work()]
        if now - min(admitted, default=now) < STAY_SECONDS:
            return  # nobody has had the shortest stay
        prompt = self._next_prompt(now)
        if prompt is None or self._would_fit(prompt, [], work(), limits, now):
            return
        victims = list[Sequence | PrefillState]()
        for victim in self._candidates(prompt, now):
            victims.append(victim)
            if self._would_fit(prompt, victims, work(), limits, now):
                self._send_back(victims)
                prompt.room_made = True
                return
        self._order.note_no_room(prompt, REPORT_SECONDS)

    def _next_prompt(self, now: float) -> PrefillState | None:
        queues = self._queues
        ordered = self._order.in_order((*queues.waiting, *queues.active), now)
        waiting = (p for p in ordered if p.handle.waiting)
        return next((p for p in waiting if not self._cache.must_wait(p.handle)), None)

    def _would_fit(
        self,
        prompt: PrefillState,
        victims: list[Sequence | PrefillState],
        work: AtWork,
        limits: SchedulerLimits,
        now: float,
    ) -> bool:
        rows = [row for row in work.rows if row not in victims]
        active = [prefill for prefill in work.active if prefill not in victims]
        taken = len(rows) + sum(len(p.sequences) for p in active)
        most = self._queues.most_rows_for(prompt.request, limits.max_batch_size)
        if taken and taken + len(prompt.sequences) > most:
            return False
        return self._admission.may_admit(prompt, replace(work, rows=rows, active=active), now)

    def _candidates(self, prompt: PrefillState, now: float) -> list[Sequence | PrefillState]:
        order, other = self._order, prompt.request

        def sort_key(victim: Sequence | PrefillState) -> tuple[float, ...]:
            request = victim.request
            return -request.priority, -order.lead_seconds(request, other), -order.due(victim)

        may_go = [victim for victim in self._at_work() if self._may_go(victim, prompt, now)]
        return sorted(may_go, key=sort_key)

    def _at_work(self) -> list[Sequence | PrefillState]:
        return [*self._queues.running.values(), *self._queues.active]

    def _may_go(self, victim: Sequence | PrefillState, prompt: PrefillState, now: float) -> bool:
        request, order = victim.request, self._order
        if now - victim.admitted < STAY_SECONDS or request.priority < prompt.request.priority:
            return False
        if isinstance(victim, Sequence) and not victim.has_decoded:
            return False
        if request.priority > prompt.request.priority:
            return True
        if prompt.is_urgent and _is_promised_later(victim, prompt):
            return True
        if isinstance(victim, PrefillState):
            can_keep_promise = not victim.is_urgent and order.can_restart(victim, now)
            if not can_keep_promise:
                return False
        lead, lost = order.lead_seconds(request, prompt.request), self._seconds_lost(victim)
        if not lead:  # they have one owner
            return order.due(victim) > order.due(prompt) + lost
        lead_needed = order.predictions.seconds_left(prompt)
        if isinstance(victim, Sequence):
            has_more = self._has_more_rows(request, prompt.request)
            lead_needed = min(lead_needed, TURN_SECONDS) if has_more else _EVEN_LEAD_SECONDS
        return lead >= lost + lead_needed

    def _has_more_rows(self, request: Request, other: Request) -> bool:
        # Of two clients, or of two conversations of one client.
        depth = 1 if request.owner != other.owner else 2
        rows = [
            *self._queues.running.values(),
            *(s for p in self._queues.active for s in p.sequences),
        ]
        rows_of = Counter(row.request.owner_path[:depth] for row in rows)
        return rows_of[request.owner_path[:depth]] > rows_of[other.owner_path[:depth]]

    def _seconds_lost(self, victim: Sequence | PrefillState) -> float:
        # Returns the seconds to compute it again: 0 if its blocks will stay in memory.
        cache = self._cache
        if isinstance(victim, Sequence):
            computed, blocks = victim.fed, victim.blocks
        else:
            computed, blocks = victim.computed, victim.handle.blocks
        nbytes = sum(block.size.nbytes for block in blocks.path)
        if cache.layout.keeps and 2 * nbytes <= cache.budget.nbytes:
            return 0.0
        return self._order.predictions.pace.seconds(0, computed)

    def _send_back(self, victims: list[Sequence | PrefillState]) -> None:
        for victim in victims:
            self._admission.note(Relief.PREEMPT)
            self._queues.preempt(
                victim.id if isinstance(victim, Sequence) else victim.sequences[0].id
            )


def _is_promised_later(victim: Sequence | PrefillState, prompt: PrefillState) -> bool:
    if isinstance(victim, Sequence) or victim.promised_by is None or prompt.promised_by is None:
        return True
    return victim.promised_by > prompt.promised_by
