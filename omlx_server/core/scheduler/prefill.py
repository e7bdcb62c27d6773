"""Plans which prompts are prefilled in a step, and how much of each. Pure.

A step holds any number of last chunks and at most one other chunk. A prompt without room is passed
by those beside whom it would still fit later.
"""

from dataclasses import dataclass, field

from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.memory.guard import Relief
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Admitted
from omlx_server.core.scheduler.limits import SMALLEST_CHUNK, SchedulerLimits
from omlx_server.core.scheduler.memory_admission import Admission, AtWork
from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.scheduler.queues import SequenceQueues
from omlx_server.core.scheduler.sequence import PrefillState, Sequence
from omlx_server.core.step import Chunk, Restore


@dataclass(slots=True)
class PrefillPlan:
    """A step's chunks, and its `prompts`, one for each. `alone`: nothing else needs the device."""

    chunks: list[Chunk] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    prompts: list[PrefillState] = field(default_factory=list)
    alone: bool = False

    def cost(self, least_cost: int) -> int:
        """Return the tokens of its chunks, each counted as `least_cost` or more."""
        return sum(max(least_cost, len(chunk.tokens)) for chunk in self.chunks)


class _Refused:
    """The needs of prompts for which a step has no room, and the `first` of them in order."""

    def __init__(self) -> None:
        self.first: PrefillState | None = None
        self._needs: list[tuple[int, int]] = []

    def note_no_room(self, prefill: PrefillState, now: float) -> None:
        if self.first is None:
            self.first = prefill
            prefill.passed_since = now if prefill.passed_since is None else prefill.passed_since

    def note_needs(self, prefill: PrefillState) -> None:
        self._needs.append((len(prefill.sequences), prefill.target))

    def covers(self, prefill: PrefillState) -> bool:
        """Return whether one that needs no more was refused."""
        needed = len(prefill.sequences), prefill.target
        return any(rows <= needed[0] and tokens <= needed[1] for rows, tokens in self._needs)


class PrefillPlanner:
    """Plans chunks in the order of prompts, as far as rows, memory and the budget allow."""

    def __init__(
        self,
        limits: SchedulerLimits,
        cache: PrefixCache,
        queues: SequenceQueues,
        admission: Admission,
        prefill_order: PrefillOrder,
    ) -> None:
        self.limits = limits
        self._cache = cache
        self._queues = queues
        self._admission = admission
        self._prefill_order = prefill_order
        self._ended: list[Sequence] = []

    def plan(self, now: float, ended: list[Sequence], *, decoding: bool) -> PrefillPlan:
        """Return the next step's prefill work. `ended` rows leave in it."""
        plan = PrefillPlan(alone=not (decoding or self._admission.shares_memory))
        self._ended = ended
        if decoding and self._prefill_order.rows_come_first:
            return plan
        limits, queues = self.limits, self._queues
        if not queues.active:  # two ways out without putting prompts in order
            if not queues.waiting and self._prefill_order.is_empty:
                return plan
            is_full = queues.waiting and queues.rows_taken >= limits.max_batch_size
            if is_full and not queues.may_be_more(limits.max_batch_size):
                return plan  # nobody can be let in, however long the queue is
        budget = limits.prefill_chunk_tokens if decoding else limits.max_batched_tokens
        # Each join makes rows wait, even of a prompt that is fully restored.
        least_cost = limits.prefill_chunk_tokens // limits.most_joins if decoding else 0
        ordered = self._prefill_order.in_order((*queues.waiting, *queues.active), now)
        refused = _Refused()
        for prefill in ordered:
            if not self._may_have_chunk(prefill, refused, now):
                continue
            cost = plan.cost(least_cost)
            if cost and cost + max(least_cost, self._next_length(prefill, plan)) > budget:
                break
            if plan.prompts and plan.prompts[0].is_urgent and not prefill.is_urgent:
                break  # urgent prompts do not wait for the chunks of others
            if prefill.handle.waiting and not self._make_room_to_begin(prefill, refused, now):
                continue
            if not self._plan_chunk(prefill, plan, now):
                break
        if not (plan.chunks or decoding) and self._queues.active:  # nothing would move
            self._preempt_for_first(ordered, plan)
        return plan

    def _may_have_chunk(self, prefill: PrefillState, refused: _Refused, now: float) -> bool:
        if self._must_wait(prefill) or _continues_ended_row(prefill, self._ended):
            if prefill.room_made:
                refused.note_no_room(prefill, now)
            return False
        if not prefill.handle.waiting:
            return True
        has_rows = self._queues.has_rows_for(prefill, self.limits.max_batch_size)
        if refused.covers(prefill) or not has_rows:
            refused.note_no_room(prefill, now)
            return False
        if refused.first is not None and self._is_in_the_way(prefill, refused.first, now):
            refused.note_needs(prefill)
            return False
        # Blocks have come or gone since it was queued.
        prefill.expected = self._cache.lease_cached(prefill.handle)
        return True

    def _is_in_the_way(self, prefill: PrefillState, first: PrefillState, now: float) -> bool:
        # Returns whether `first` would not fit beside this prompt and others that passed it.
        if first.room_made or first.passed_since is None:
            return True
        since = first.passed_since
        rows = [row for row in self._queues.running.values() if row.admitted >= since]
        active = [p for p in self._queues.active if p.admitted >= since] + [prefill]
        taken = len(rows) + sum(len(one.sequences) for one in (*active, first))
        if taken > self._queues.most_rows_for(first.request, self.limits.max_batch_size):
            return True
        return not self._admission.may_admit(first, AtWork(rows, active, []), now)

    def _must_wait(self, prefill: PrefillState) -> bool:
        if not prefill.handle.waiting:
            return False
        must_wait = self._cache.must_wait(prefill.handle)
        if prefill.waited and not must_wait:
            prefill.expected = self._cache.lease_cached(prefill.handle)
        prefill.waited = must_wait
        return must_wait

    def _next_length(self, prefill: PrefillState, plan: PrefillPlan) -> int:
        start = max(prefill.computed, prefill.expected)
        return prefill.next_stop(start, self.limits.grid_at(start, alone=plan.alone)) - start

    def _make_room_to_begin(self, prefill: PrefillState, refused: _Refused, now: float) -> bool:
        others = [waiting.handle for waiting in self._queues.waiting if waiting is not prefill]
        work = self._at_work(others)
        may_begin = self._admission.may_admit(prefill, work, now)
        if may_begin and self._admission.admit(prefill, work, now):
            return not self._cache.read_on(prefill.handle, others)
        if not may_begin:
            refused.note_needs(prefill)
        if refused.first is None:
            self._admission.note(Relief.PAUSE)
        refused.note_no_room(prefill, now)
        return False

    def _plan_chunk(self, prefill: PrefillState, plan: PrefillPlan, now: float) -> bool:
        # Plan a prompt's next chunk, if it fits. Returns whether the step may have another.
        is_new = prefill.handle.waiting
        if is_new:
            self._admit(prefill, plan, now)
        stop = self._chunk_end(prefill, plan, now)
        if stop is None and not is_new:
            return True
        # Room for a new prompt's smallest chunk was made before it was admitted.
        return self._append_chunk(prefill, stop or self._smallest_end(prefill), plan)

    def _preempt_for_first(self, ordered: list[PrefillState], plan: PrefillPlan) -> None:
        """Preempt all but the first prompt, or all where other models hold memory."""
        if self._admission.shares_memory:
            for prefill in tuple(self._queues.active):
                self._admission.note(Relief.PREEMPT)
                self._queues.preempt(prefill.sequences[0].id)
            return
        first, *others = [prefill for prefill in ordered if prefill in self._queues.active]
        for prefill in others:
            self._admission.note(Relief.PREEMPT)
            self._queues.preempt(prefill.sequences[0].id)
        self._cache.let_go(first.handle)
        self._append_chunk(first, self._smallest_end(first), plan)

    def _chunk_end(self, prefill: PrefillState, plan: PrefillPlan, now: float) -> int | None:
        # Returns the end of the largest chunk for which there is room.
        start = prefill.computed
        size = self.limits.grid_at(start, alone=plan.alone)
        smallest = min(SMALLEST_CHUNK, self.limits.grid_at(start))
        waiting = [other.handle for other in self._queues.waiting]
        while size >= smallest:
            stop = prefill.next_stop(start, size)
            chunk = prefill.chunk(stop)
            if self._admission.make_room_for_chunk(plan.chunks, chunk, self._at_work(waiting), now):
                return stop
            self._admission.note(Relief.CHUNK)
            size //= 2
        return None

    def _smallest_end(self, prefill: PrefillState) -> int:
        size = min(SMALLEST_CHUNK, self.limits.grid_at(prefill.computed))
        return prefill.next_stop(prefill.computed, size)

    def _admit(self, prefill: PrefillState, plan: PrefillPlan, now: float) -> None:
        prefill.admitted = now
        lookup = self._cache.admit(prefill.handle)
        prefill.expected, prefill.computed, prefill.restored = 0, lookup.cached, lookup.cached
        if lookup.plan is not None:
            plan.restores.append(Restore(prefill.key, lookup.plan))
        if not prefill.has_answered:
            admitted = Admitted(prefill.request.id, lookup.cached, lookup.known, lookup.miss)
            plan.admitted.append(admitted)
        self._queues.activate(prefill)

    def _append_chunk(self, prefill: PrefillState, stop: int, plan: PrefillPlan) -> bool:
        # Returns whether it is the prompt's last, after which others may follow.
        start = prefill.computed
        is_last = stop == prefill.target
        cuts = self._cache.cutter.of_chunk(prefill.handle, start, stop)
        self._queues.cut_sources.note(cuts, prefill)
        plan.chunks.append(prefill.chunk(stop, cuts))
        plan.prompts.append(prefill)
        prefill.computed = stop
        if is_last:
            self._queues.join(prefill)
        return is_last

    def _at_work(self, others: list[PrefixHandle]) -> AtWork:
        queues = self._queues
        return AtWork(queues.running.values(), queues.active, others, self._ended)


def _continues_ended_row(prefill: PrefillState, ended: list[Sequence]) -> bool:
    # It waits a step for the last block of the answer that it continues.
    if not prefill.handle.waiting:
        return False
    prompts = (sequence.request.tokens for sequence in ended)
    return any(prefill.context[: len(tokens)] == tokens for tokens in prompts)
