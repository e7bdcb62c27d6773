"""Which prompts are read in a step, and how much of each. Pure; owned by the scheduler.

Prompts share what the token budget leaves, in the order of `core/scheduler/order.py`. A step holds
any number of last chunks and at most one chunk that is not the last, so newcomers wait for one
chunk at most. A waiting prompt that has its turn but not enough free rows or memory is passed by
those who fit, for `Limits.patience` seconds: then nobody else is let in before it. A prompt whose
next block is being computed for another one waits for it, and is passed over until then.
"""

from dataclasses import dataclass, field

from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.memory.guard import Rung
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Admission
from omlx_server.core.scheduler.admission import AtWork, Pressure
from omlx_server.core.scheduler.limits import SMALLEST_CHUNK, Limits
from omlx_server.core.scheduler.order import Turns
from omlx_server.core.scheduler.queues import Roster
from omlx_server.core.scheduler.sequence import Prefill, Sequence
from omlx_server.core.step import Chunk, Restore


@dataclass(slots=True)
class PrefillPlan:
    """A step's prefill work while it is being put together."""

    chunks: list[Chunk] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    prompts: list[Prefill] = field(default_factory=list)

    def cost(self, least: int) -> int:
        """Tokens, of each chunk so many at least."""
        return sum(max(least, len(chunk.tokens)) for chunk in self.chunks)


class _Refused:
    """For whom there was no room in a step: so there is none for who needs as much or more. In a
    long queue the guard is asked once, not once for each of the queue."""

    def __init__(self) -> None:
        self._needs: list[tuple[int, int]] = []

    def add(self, prefill: Prefill) -> None:
        self._needs.append((len(prefill.sequences), prefill.target))

    def covers(self, prefill: Prefill) -> bool:
        rows, tokens = len(prefill.sequences), prefill.target
        return any(least <= rows and fewest <= tokens for least, fewest in self._needs)


class Prefills:
    """Plans over the scheduler's own roster."""

    def __init__(
        self, limits: Limits, cache: PrefixCache, roster: Roster, pressure: Pressure, turns: Turns
    ) -> None:
        self.limits = limits
        self._cache = cache
        self._roster = roster
        self._pressure = pressure
        self._turns = turns
        self._ended: list[Sequence] = []

    def plan(self, now: float, ended: list[Sequence], *, decoding: bool) -> PrefillPlan:
        """The prompts' part of a step. `ended` are rows that leave in it."""
        plan = PrefillPlan()
        self._ended = ended
        if decoding and self._turns.rows_first:
            return plan
        limits = self.limits
        budget = limits.prefill_chunk_tokens if decoding else limits.max_batched_tokens
        first: Prefill | None = None  # of those who have their turn and do not fit
        refused = _Refused()
        # Rows wait meanwhile, also for those of whom all is known: they join, one after the other.
        least = limits.prefill_chunk_tokens // limits.most_joins if decoding else 0
        everybody = (*self._roster.waiting, *self._roster.active)
        ordered = self._turns.in_order(everybody, now)
        for prefill in ordered:
            if self._must_wait(prefill) or _continues(prefill, ended):
                continue
            if prefill.ticket.waiting:
                if first is not None and not self._may_be_passed(first, now):
                    continue
                most = limits.max_batch_size
                if not self._roster.has_rows_for(prefill, most) or refused.covers(prefill):
                    first = first or prefill
                    continue
                # Blocks have come since it was queued, or had to go.
                prefill.expected = self._cache.hold(prefill.ticket)
            cost = plan.cost(least)
            if cost and cost + max(least, self._next_length(prefill)) > budget:
                break
            if prefill.ticket.waiting and not self._lets_in(prefill, refused, now):
                if first is None:
                    first = prefill
                    self._pressure.note(Rung.PAUSE)
                continue
            if not self._read_on(prefill, plan, now):
                break
        if not (plan.chunks or decoding) and self._roster.active:
            self._force_one(ordered, plan)
        return plan

    def _may_be_passed(self, prefill: Prefill, now: float) -> bool:
        """Whether others are let in before one that is first and does not fit."""
        if prefill.passed_since is None:
            prefill.passed_since = now
        return now - prefill.passed_since < self.limits.patience

    def _must_wait(self, prefill: Prefill) -> bool:
        """Whether its next block is under way elsewhere. Who has waited knows more afterwards."""
        if not prefill.ticket.waiting:
            return False
        waits = self._cache.must_wait(prefill.ticket)
        if prefill.waited and not waits:
            prefill.expected = self._cache.hold(prefill.ticket)
        prefill.waited = waits
        return waits

    def _next_length(self, prefill: Prefill) -> int:
        """Tokens of the next chunk, as far as can be known before its turn."""
        at = max(prefill.computed, prefill.expected)
        return prefill.ticket.next_stop(at, self.limits.grid_at(at)) - at

    def _lets_in(self, prefill: Prefill, refused: _Refused, now: float) -> bool:
        others = [waiting.ticket for waiting in self._roster.waiting if waiting is not prefill]
        work = self._at_work(others)
        if not self._pressure.has_room(prefill, work, now):
            refused.add(prefill)
            return False
        return self._pressure.takes_first(prefill, work, now)

    def _read_on(self, prefill: Prefill, plan: PrefillPlan, now: float) -> bool:
        """Plan its next chunk, if the memory reaches. False after a chunk that does not end its
        prompt: it is the step's last."""
        new = prefill.ticket.waiting
        if new:
            self._admit(prefill, plan)
        stop = self._chunk_end(prefill, plan, now)
        if stop is None and not new:
            return True
        return self._take_chunk(prefill, stop or self._smallest_end(prefill), plan)

    def _force_one(self, ordered: list[Prefill], plan: PrefillPlan) -> None:
        """Nobody can go on, because everybody holds some memory: all but the first make room. The
        first one too where other models hold the rest: it is read when they have ended."""
        if self._pressure.shares:
            for prefill in tuple(self._roster.active):
                self._pressure.note(Rung.PREEMPT)
                self._roster.preempt(prefill.sequences[0].id)
            return
        first, *others = [prefill for prefill in ordered if prefill in self._roster.active]
        for prefill in others:
            self._pressure.note(Rung.PREEMPT)
            self._roster.preempt(prefill.sequences[0].id)
        self._cache.let_go(first.ticket)
        self._take_chunk(first, self._smallest_end(first), plan)

    def _chunk_end(self, prefill: Prefill, plan: PrefillPlan, now: float) -> int | None:
        """Where the next chunk ends, as far as the memory reaches; None where it does not."""
        start, size = prefill.computed, self.limits.grid_at(prefill.computed)
        smallest = min(SMALLEST_CHUNK, size)
        waiting = [other.ticket for other in self._roster.waiting]
        while size >= smallest:
            stop = prefill.ticket.next_stop(start, size)
            joins = prefill.joins() if stop == prefill.target else ()
            chunk = Chunk(prefill.key, start, prefill.context[start:stop], joins)
            if self._pressure.takes(plan.chunks, chunk, self._at_work(waiting), now):
                return stop
            self._pressure.note(Rung.CHUNK)
            size //= 2
        return None

    def _smallest_end(self, prefill: Prefill) -> int:
        size = min(SMALLEST_CHUNK, self.limits.grid_at(prefill.computed))
        return prefill.ticket.next_stop(prefill.computed, size)

    def _admit(self, prefill: Prefill, plan: PrefillPlan) -> None:
        lookup = self._cache.admit(prefill.ticket)
        prefill.expected, prefill.computed = 0, lookup.cached
        if lookup.plan is not None:
            plan.restores.append(Restore(prefill.key, lookup.plan))
        if not prefill.has_answered:
            admission = Admission(prefill.request.id, lookup.cached, lookup.known, lookup.miss)
            plan.admissions.append(admission)
        self._roster.activate(prefill)

    def _take_chunk(self, prefill: Prefill, stop: int, plan: PrefillPlan) -> bool:
        start = prefill.computed
        last = stop == prefill.target
        cuts = self._cache.cutter.of_chunk(prefill.ticket, start, stop, prefill)
        joins = prefill.joins() if last else ()
        tokens = prefill.context[start:stop]
        plan.chunks.append(Chunk(prefill.key, start, tokens, joins, tuple(cuts)))
        plan.prompts.append(prefill)
        prefill.computed = stop
        if last:
            self._roster.join(prefill)
        return last

    def _at_work(self, others: list[Ticket]) -> AtWork:
        roster = self._roster
        return AtWork(roster.running.values(), roster.active, others, self._ended)


def _continues(prefill: Prefill, ended: list[Sequence]) -> bool:
    """Whether a waiting prompt goes on where a row has just ended: what is cut of its last tokens
    can be used in the next step."""
    if not prefill.ticket.waiting:
        return False
    prompts = (sequence.request.tokens for sequence in ended)
    return any(prefill.context[: len(tokens)] == tokens for tokens in prompts)
