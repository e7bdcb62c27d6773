"""API keys share the rows: which rows of one key make way for another key that waits. Pure; owned
by the scheduler."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from omlx_server.core.interval import REPORT_SECONDS, Interval
from omlx_server.core.memory.guard import Relief
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request
from omlx_server.core.scheduler.admission import Admission, AtWork
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.scheduler.preemption import first_to_go
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.core.scheduler.sequence import Prefill, Sequence

# So long a key waits for its share of the rows before another one's sequences make way.
_PATIENCE_SECONDS = 1.0


class RowSharing:
    """Sends rows of one key back to the queue for a prompt of another one."""

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
        self._prefill_order = prefill_order
        self._look_again = Interval(REPORT_SECONDS)

    def make_way(self, limits: Limits, at_work: Callable[[], AtWork], now: float) -> None:
        """If all rows are taken and the policy has keys share them: preempt the newest rows of the
        key that has most, for a prompt of a key that has fewer and has waited for a second. As many
        rows go as the prompt needs at once, if memory has room for it then and no other prompt
        would take them: else rows would go to the queue and come back, again and again."""
        queues = self._queues
        if not (queues.waiting and limits.policy.shares_rows):
            return
        if queues.rows_taken < limits.max_batch_size or not self._look_again.has_passed(now):
            return
        self._look_again.begin(now)
        taken = Counter(queues.owners_of_rows())
        owner, most = taken.most_common(1)[0]
        late, others = now - _PATIENCE_SECONDS, (p.request for p in queues.waiting)
        if not any(other.owner != owner and other.arrived <= late for other in others):
            return
        narrowest = limits.max_batch_size + 1  # of those that come before
        for prefill in self._waiting_in_order(now):
            request, width = prefill.request, len(prefill.sequences)
            count = queues.rows_taken + width - limits.max_batch_size
            if width < narrowest and most - count >= taken[request.owner] + width:
                rows = self._newest(request, owner, count)
                if rows and request.arrived <= late:
                    self._send_back(rows, prefill, at_work(), now)
                return
            narrowest = min(narrowest, width)

    def _waiting_in_order(self, now: float) -> list[Prefill]:
        """The waiting prompts that could use a row now, in the order of their turns."""
        everybody = (*self._queues.waiting, *self._queues.active)
        return [
            prefill
            for prefill in self._prefill_order.in_order(everybody, now)
            if prefill.handle.waiting and not self._cache.must_wait(prefill.handle)
        ]

    def _newest(self, request: Request, owner: bytes, count: int) -> list[Sequence]:
        """The `count` newest of an owner's rows that can make way; none if there are fewer. Rows
        that have not decoded yet can't, else prompts would be prefilled again and again for
        nothing; nor can those of a better class, which would have their rows back at once."""
        rows = [
            row
            for row in self._queues.running.values()
            if row.request.owner == owner
            and row.has_decoded
            and row.request.priority >= request.priority
        ]
        return first_to_go(rows)[:count] if len(rows) >= count else []

    def _send_back(self, rows: list[Sequence], prefill: Prefill, work: AtWork, now: float) -> None:
        """Preempt these rows, if the memory that they leave is enough for a waiting prompt."""
        others = [row for row in work.rows if row not in rows]
        if not self._admission.has_room(prefill, replace(work, rows=others), now):
            return
        for row in rows:
            self._admission.note(Relief.PREEMPT)
            self._queues.preempt(row.id)
