"""Who is computed in the next step. Pure; owned by the mlx thread; time comes in as `now`.

Rows in `running` decode in every step; `core/scheduler/prefill.py` says what prompts are read
beside them, and `core/scheduler/queues.py` knows where each sequence is. Where memory is short
(`core/scheduler/admission.py`), chunks become smaller, nobody is let in, and at last the newest
sequence goes back to its blocks and into the queue.
"""

import math
from collections import Counter

from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.memory.guard import Guard, Rung
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import (
    FinishReason,
    Rejected,
    Request,
    RequestId,
    SampledRow,
    TokenEvent,
)
from omlx_server.core.scheduler.admission import HEADROOM, AtWork, Pressure
from omlx_server.core.scheduler.limits import Limits, Load
from omlx_server.core.scheduler.order import SIZES, Turns
from omlx_server.core.scheduler.prefill import Prefills
from omlx_server.core.scheduler.queues import Roster, owners
from omlx_server.core.scheduler.sequence import Sequence, source_of
from omlx_server.core.scheduler.standing import Standing, Standings
from omlx_server.core.step import Chunk, RowCut, SequenceId, Step, StepResult, Stored

# Where one row is fed ahead, the others are padded, and their keys and values move behind the
# padding. So fewer are not worth it, and rows of more tokens together stay where they are: a
# grammar that forces many tokens must not make the steps of all long ones.
_FEWEST_FORCED = 4
_MOST_MOVED = 2048
# So long a key waits for its share of the rows before another one's sequence makes way.
_PATIENCE_SECONDS = 1.0
_LONGEST_RETRY = 600


class Scheduler:
    """Turns requests into steps and sampled tokens into events. Without a `guard` memory is not
    watched."""

    def __init__(self, limits: Limits, cache: PrefixCache, guard: Guard | None = None) -> None:
        self._limits = limits
        self._most_rows = limits.max_batch_size
        self._cache = cache
        self._pressure = Pressure(guard, cache, limits.grouping)
        self._turns = Turns(limits)
        self._roster = Roster(cache)
        self._prefills = Prefills(limits, cache, self._roster, self._pressure, self._turns)

    def change(self, limits: Limits) -> None:
        """Other bounds from now on, of the same chunks: what a prompt is cut into must not depend
        on when it came. Who has a row or a place in the queue keeps it."""
        if self._limits.prefill_chunk_tokens != limits.prefill_chunk_tokens:
            raise ValueError("chunks can't change their size")
        self._limits = self._prefills.limits = limits
        self._most_rows = max(self._most_rows, limits.max_batch_size)
        self._turns.change(limits)

    def all_fit(self, guard: Guard) -> bool:
        """Whether everybody who is here would be let in by another guard, one at a time."""
        pressure = Pressure(guard, self._cache, self._limits.grouping)
        roster = self._roster
        groups = [prefill.sequences for prefill in (*roster.waiting, *roster.active)]
        groups += [[row] for row in roster.rows()]
        return all(pressure.fits_alone(len(g[0].context) + HEADROOM, len(g)) for g in groups)

    # -- requests come and go ------------------------------------------------------------

    def add(self, request: Request, now: float) -> Rejected | None:
        """Queue a request, or refuse it when the queue is full or no memory would be enough."""
        width = self._width_of(request)
        if not width:
            self._pressure.note(Rung.REJECT)
            why = self._pressure.explain(len(request.tokens) + HEADROOM)
            return Rejected(request.id, 0, 0, why)
        waiting = self._roster.waiting
        queued = {prefill.request.id for prefill in waiting}
        if len(queued) >= self._limits.max_queue:
            return Rejected(request.id, len(queued), self._retry_after(request, now))
        self._roster.add(request, width)
        return None

    def bound(self, request: Request) -> float:
        """Within how many seconds a request that comes now would have the first token of each of
        its choices, by the work before it and its share (`Turns.bound`). 0 where that is not known.
        Choices that don't fit beside each other read the prompt one after the other."""
        times = math.ceil(request.n / max(1, self._width_of(request)))
        return self._turns.bound(request, times, (*self._roster.waiting, *self._roster.active))

    def cancel(self, request: RequestId, index: int | None = None) -> None:
        """Forget a request or one of its choices, wherever it is. Unknown ids are ignored."""
        for sequence in list(self._roster.sequences()):
            if sequence.id.request == request and index in (None, sequence.id.choice):
                self._roster.remove(sequence)

    def fail(self, chunk: Chunk, message: str) -> list[TokenEvent]:
        """End every choice that needed this chunk with an error."""
        joined = {join.id for join in chunk.joins}
        victims = [s for s in self._roster.running.values() if s.id in joined]
        for prefill in self._roster.active:
            if prefill.key == chunk.prefill:
                victims += prefill.sequences
        return [self._end(s, FinishReason.ERROR, message) for s in victims]

    def fail_sequence(self, id: SequenceId, message: str) -> list[TokenEvent]:
        """End one choice with an error, wherever it is."""
        victims = [s for s in self._roster.sequences() if s.id == id]
        return [self._end(s, FinishReason.ERROR, message) for s in victims]

    def fail_newest(self) -> list[TokenEvent]:
        """The machine had no memory left for a step: of those at work the request that came last
        ends, so that the others can go on."""
        rows = self._roster.rows()
        prompts = [s for prefill in self._roster.active for s in prefill.sequences]
        newest = max((*rows, *prompts), key=_age, default=None)
        if newest is None:
            return []
        self._pressure.note(Rung.REJECT)
        victims = [s for s in self._roster.sequences() if s.id.request == newest.id.request]
        why = self._pressure.explain(len(newest.context))
        return [self._end(s, FinishReason.MEMORY, why) for s in victims]

    def expire(self, now: float) -> list[TokenEvent]:
        """End the sequences whose deadline has passed."""
        late = [
            s
            for s in self._roster.sequences()
            if s.request.deadline is not None and s.request.deadline <= now
        ]
        return [self._end(s, FinishReason.DEADLINE) for s in late]

    def restart(self) -> list[Sequence]:
        """Send all computed work back to the queue, output kept, after the device lost it.

        Returns the sequences that were live. Results of steps in flight must not be reported.
        """
        return self._roster.restart()

    def waiting_requests(self) -> set[RequestId]:
        """Requests of which nothing has been computed yet."""
        roster = self._roster
        touched = {sequence.request.id for sequence in roster.rows()}
        touched |= {prefill.request.id for prefill in roster.active}
        touched |= {prefill.request.id for prefill in roster.waiting if prefill.has_answered}
        return {prefill.request.id for prefill in roster.waiting} - touched

    def standings(self, now: float) -> list[Standing]:
        """Where everybody is, and what they wait for."""
        return list(Standings(self._roster, self._cache, self._pressure, self._limits).all(now))

    def groups(self) -> list[list[Sequence]]:
        """Everybody who is here, for another scheduler's `take_in`."""
        return self._roster.groups()

    def take_in(self, groups: list[list[Sequence]]) -> None:
        """Queue who was in another scheduler, output kept, whatever the queue's bound. Nothing
        that they have in flight there may be reported here."""
        self._roster.take_in(groups)

    # -- a step --------------------------------------------------------------------------

    def relieve(self, now: float) -> list[TokenEvent]:
        """Before a step: where the memory is too small for all rows to go on, the newest sequence
        makes room. The last one that is left, of any model, ends where it is."""
        roster = self._roster
        roster.retire_exhausted()
        self._pressure.promise(self._at_work())
        events = []
        while not self._pressure.rows_fit(self._at_work(), now):
            if len(roster.running) + len(roster.active) > 1 or self._pressure.shares:
                self._preempt_newest()
            else:
                [last] = roster.running.values()
                events.append(self._end_for_memory(last))
        if not (roster.active or roster.rows()):
            events += self._refuse_the_too_large()
        return events

    def schedule(self, now: float) -> Step | None:
        """The next step, or None when there is nothing to do. Computed counts move on here."""
        roster = self._roster
        roster.retire_exhausted()
        self._turns.begin(now)
        self._make_way(now)
        drops, tails, ended = roster.take_drops()
        rows = list(roster.running.values())
        feeds, row_cuts = self._advance_rows()
        plan = self._prefills.plan(now, ended, decoding=bool(rows))
        drops += roster.take_drops()[0]  # prompts that made room for another one
        more = bool(roster.waiting or roster.active)
        self._turns.planned(owners(rows), plan.prompts, plan.cost(0), more=more)
        if not (drops or rows or plan.chunks):
            return None
        return Step(
            drops=drops,
            tails=tails,
            decodes=tuple(row.id for row in rows),
            feeds=feeds,
            row_cuts=tuple(row_cuts),
            restores=tuple(plan.restores),
            chunks=tuple(plan.chunks),
            admissions=tuple(plan.admissions),
            drain_pool=self._pressure.drains_pool,
        )

    def fits_without_others(self, request: Request, weights: int) -> bool:
        """Whether a request could be served if of all models only these weights were loaded."""
        return self._pressure.fits_without_others(len(request.tokens) + 1, request.n, weights)

    def chunks_took(self, seconds: float) -> None:
        """How long the chunks of the newest step took."""
        self._turns.read(seconds)

    def keep(self, stored: Stored) -> tuple[PayloadId | None, PayloadId | None]:
        """Note what a step has cut. Returns the ids under which to keep block and state; None for
        what the cache does not need. Comes before `update` for the same step's tokens."""
        source = source_of(stored.cut)
        tokens = source.fed_tokens(stored.cut.stop)
        root = self._cache.root(source.request.salt)
        block = state = None
        if stored.block is not None:
            block = self._cache.store_block(root, tokens, stored.block)
        if stored.state is not None and stored.cut.worth is not None:
            state = self._cache.store_checkpoint(root, tokens, stored.state, stored.cut.worth)
        return block, state

    def update(self, result: StepResult) -> list[TokenEvent]:
        """Take in the tokens of a step. Rows that have ended meanwhile are passed over."""
        events = []
        for id, row in result.rows.items():
            sequence = self._roster.row(id)
            if sequence is not None:
                sequence.in_flight -= 1
                events += self._take(sequence, row)
                self._roster.requeue_when_read(sequence)
        for failure in result.failures:
            events += self.fail(failure.chunk, failure.message)
        if result.starved:
            events += self.fail_newest()
        for chunk in result.lost:
            self._roster.compute_afresh(chunk, reuses=False)
        for chunk in result.starved:
            self._roster.compute_afresh(chunk, reuses=True)
        if result.chunks_done:  # not before: a restore needs what its ticket holds
            self._roster.leave_computed()
        return events

    @property
    def load(self) -> Load:
        roster = self._roster
        waiting = sum(len(prefill.sequences) for prefill in roster.waiting) + len(roster.preempted)
        prefilling = sum(len(prefill.sequences) for prefill in roster.active)
        return Load(waiting, prefilling, len(roster.running) + len(roster.finishing))

    def oldest(self) -> dict[str, float]:
        """When the oldest request came that waits for its first token in the queue, by the size of
        its prompt (core/scheduler/order.py). Only sizes of which one waits."""
        came: dict[str, float] = {}
        for prefill in self._roster.waiting:
            if not prefill.has_answered:
                size, arrived = SIZES[self._turns.size(prefill.target)], prefill.request.arrived
                came[size] = min(arrived, came.get(size, arrived))
        return came

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that are to be computed for those who wait."""
        return sum(prefill.remaining for prefill in self._roster.waiting)

    @property
    def has_work(self) -> bool:
        roster = self._roster
        return bool(roster.waiting or roster.active or roster.drops or roster.rows())

    def check_invariants(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        self._roster.check_invariants()
        assert self._roster.rows_taken <= self._most_rows, "more rows than there may be"

    # -- rows ----------------------------------------------------------------------------

    def _advance_rows(self) -> tuple[dict[SequenceId, tuple[int, ...]], list[RowCut]]:
        """Every live row is fed its newest token, and maybe some that must follow it; a row that
        completes a block with them is cut."""
        feeds, cuts = {}, []
        for sequence in self._roster.running.values():
            ahead = sequence.feed(self._feedable(sequence))
            if ahead:
                feeds[sequence.id] = ahead
            cut = self._cache.cutter.of_row(sequence.fed, sequence)
            if cut is not None:
                cuts.append(RowCut(sequence.id, sequence.fed, cut))
        return feeds, cuts

    def _feedable(self, sequence: Sequence) -> int:
        """How many forced tokens go into the next step: not beyond the block, which is cut at its
        end, and one token is to be sampled."""
        size = self._cache.layout.block_size
        room = sequence.request.sampling.max_tokens - len(sequence.output) - 1
        count = min(len(sequence.forced), size - 1 - sequence.fed % size, room)
        running = self._roster.running.values()
        rows = len(running)
        if rows == 1:
            return count
        count = min(count, self._limits.most_places // rows - 1)
        moved = rows * max(row.fed for row in running)
        uneven = self._limits.feeds_unevenly and moved <= _MOST_MOVED
        return count if uneven and count >= _FEWEST_FORCED else 0

    def _take(self, sequence: Sequence, row: SampledRow) -> list[TokenEvent]:
        unsent, sequence.unsent = sequence.unsent, ()
        return [TokenEvent(*sequence.id, token=t) for t in unsent] + [self._taken(sequence, row)]

    def _taken(self, sequence: Sequence, row: SampledRow) -> TokenEvent:
        sampling = sequence.request.sampling
        if row.problem:
            why = FinishReason.GRAMMAR if row.too_costly else FinishReason.ERROR
            return self._end(sequence, why, row.problem)
        if row.token in sampling.stop_ids and len(sequence.output) >= sampling.min_tokens:
            sequence.ended_by = row.token
            return self._end(sequence, FinishReason.STOP)
        sequence.output.append(row.token)
        sequence.forced = row.forced
        finish = FinishReason.STOP if row.done else None
        if len(sequence.output) == sampling.max_tokens:
            finish = finish or FinishReason.LENGTH
        if finish:
            self._roster.remove(sequence)
        return TokenEvent(*sequence.id, token=row.token, logprobs=row.logprobs, finish=finish)

    def _end(self, sequence: Sequence, why: FinishReason, message: str = "") -> TokenEvent:
        self._roster.remove(sequence)
        return TokenEvent(*sequence.id, finish=why, error=message)

    def _make_way(self, now: float) -> None:
        """When all rows are taken: a key that waits and has fewer of them than another, by two or
        more, gets the newest of the other one's, if the policy has keys share them. Not one that
        has not decoded yet, else prompts would be read again and again for nothing; nor one of a
        better class, which would have it back at once."""
        roster, limits = self._roster, self._limits
        if not limits.policy.shares_rows or roster.rows_taken < limits.max_batch_size:
            return
        taken = Counter(roster.owners_of_rows())
        owner, most = taken.most_common(1)[0]
        late = now - _PATIENCE_SECONDS
        for prefill in roster.waiting:
            request = prefill.request
            if most - taken[request.owner] < 2 or request.arrived > late:
                continue
            if self._cache.must_wait(prefill.ticket):
                continue  # it could not use it
            rows = [
                row
                for row in roster.running.values()
                if row.request.owner == owner
                and row.has_decoded
                and row.request.priority >= request.priority
            ]
            if rows:
                self._pressure.note(Rung.PREEMPT)
                roster.preempt(max(rows, key=_age).id)
                return

    def _retry_after(self, request: Request, now: float) -> int:
        """Seconds until a request like it would have its turn: what is to be read before it, or
        what one of its size has waited already, for rows or for memory."""
        everybody = (*self._roster.waiting, *self._roster.active)
        size = SIZES[self._turns.size(len(request.tokens) - 1)]
        waited = now - self.oldest().get(size, now)
        seconds = max(1.0, waited, self._turns.wait(request, everybody))
        return min(_LONGEST_RETRY, math.ceil(seconds))

    # -- under pressure ------------------------------------------------------------------

    def _width_of(self, request: Request) -> int:
        """How many choices of a request can be rows together; 0 when not even one fits."""
        width = min(request.n, self._limits.max_batch_size)
        while width and not self._pressure.fits_alone(len(request.tokens) + HEADROOM, width):
            width -= 1
        return width

    def _at_work(self) -> AtWork:
        """Between two steps active prompts have in their caches what their blocks held."""
        roster = self._roster
        tickets = [prefill.ticket for prefill in (*roster.waiting, *roster.active)]
        return AtWork(roster.running.values(), roster.active, tickets, tuple(roster.ended))

    def _preempt_newest(self) -> None:
        self._pressure.note(Rung.PREEMPT)
        prompts = [prefill.sequences[0] for prefill in self._roster.active]
        self._roster.preempt(max((*self._roster.running.values(), *prompts), key=_age).id)

    def _refuse_the_too_large(self) -> list[TokenEvent]:
        """Nobody is at work: who does not fit now never will."""
        events, queue = [], list(self._roster.waiting)
        for prefill in queue:
            if self._pressure.fits_alone(len(prefill.context) + 1, len(prefill.sequences)):
                continue
            if len(prefill.sequences) > 1:
                queue += self._roster.take_apart(prefill)  # nor may one of them by itself
            else:
                events.append(self._end_for_memory(prefill.sequences[0]))
        return events

    def _end_for_memory(self, sequence: Sequence) -> TokenEvent:
        """An answer that has begun ends as if it had met its limit."""
        self._pressure.note(Rung.REJECT)
        if sequence.output:
            return self._end(sequence, FinishReason.LENGTH)
        why = self._pressure.explain(len(sequence.context))
        return self._end(sequence, FinishReason.MEMORY, why)


def _age(sequence: Sequence) -> tuple[int, float, SequenceId]:
    """The highest is the newest of the last class."""
    return sequence.request.priority, sequence.request.arrived, sequence.id
