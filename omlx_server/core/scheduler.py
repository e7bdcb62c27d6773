"""Who is computed in the next step. Pure; owned by the mlx thread; time comes in as `now`.

A sequence is in exactly one place: in a waiting or active Prefill, or in `running` as a live row.

    waiting --admit--> active --last chunk--> running --stop, length, cancel--> gone

Rules: rows in `running` decode in every step. Prefills share what is left of the token budget,
the shortest remaining first, with ageing. A step holds any number of last chunks and at most one
chunk that is not the last, so newcomers wait for one chunk at most. Nobody overtakes a waiting
prefill that has its turn but not enough free rows. A prompt whose next block is being computed
for another one waits for it, and is passed over until then.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from omlx_server.core.blocks import PayloadId
from omlx_server.core.prefix_cache import PrefixCache
from omlx_server.core.request import (
    Admission,
    FinishReason,
    Rejected,
    Request,
    RequestId,
    SampledRow,
    TokenEvent,
)
from omlx_server.core.sequence import Prefill, Sequence, source_of
from omlx_server.core.step import (
    Chunk,
    Restore,
    RowCut,
    SequenceId,
    Step,
    StepResult,
    Stored,
)
from omlx_server.core.ticket import Ticket

_SMALLEST_CHUNK = 64
# Fewer are not worth the padding of all other rows.
_FEWEST_FORCED = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the scheduler. Tokens count prompt tokens of one step over all sequences.

    `prefill_chunk_tokens` is the chunk grid, and the budget of a step while rows are decoding;
    `max_batched_tokens` is the budget while none is. Where attention takes a time that grows with
    depth, chunks are halved at `halve_chunks_at` tokens and at each double of it. A waiting prefill
    gains `ageing_tokens_per_second` on shorter ones for each second that it waits. With
    `feeds_unevenly`, rows of a batch can be fed different numbers of tokens.
    """

    max_batch_size: int = 8
    max_queue: int = 128
    prefill_chunk_tokens: int = 512
    max_batched_tokens: int = 2048
    halve_chunks_at: int | None = None
    ageing_tokens_per_second: float = 256.0
    feeds_unevenly: bool = True

    def __post_init__(self) -> None:
        if min(self.max_batch_size, self.prefill_chunk_tokens, self.max_batched_tokens) < 1:
            raise ValueError("scheduler limits must be positive")

    def grid_at(self, position: int) -> int:
        """The chunk size at a depth: a function of nothing else, so warm and cold runs agree."""
        size, limit = self.prefill_chunk_tokens, self.halve_chunks_at
        while limit and position >= limit and size > _SMALLEST_CHUNK:
            size, limit = size // 2, limit * 2
        return size

    def one_at_a_time(self) -> "Limits":
        """The same for a model that can't be batched."""
        return replace(self, max_batch_size=1)


@dataclass(frozen=True, slots=True)
class Load:
    """How many sequences are where, for health, metrics and Retry-After."""

    waiting: int
    prefilling: int
    running: int


class Scheduler:
    """Turns requests into steps and sampled tokens into events."""

    def __init__(self, limits: Limits, cache: PrefixCache) -> None:
        self._limits = limits
        self._cache = cache
        self._waiting: list[Prefill] = []
        self._active: list[Prefill] = []
        self._running: dict[SequenceId, Sequence] = {}
        self._finishing: dict[SequenceId, Sequence] = {}  # last token launched, not yet read
        self._drops: list[SequenceId] = []
        self._tails: list[RowCut] = []
        self._ended: list[Sequence] = []  # rows that leave in the next step
        self._computed: list[Ticket] = []  # their last chunk has not run yet
        self._order = 0

    # -- requests come and go ------------------------------------------------------------

    def add(self, request: Request, now: float) -> Rejected | None:
        """Queue a request, or refuse it when the queue is full."""
        queued = {prefill.request.id for prefill in self._waiting}
        if len(queued) >= self._limits.max_queue:
            oldest = min(prefill.request.arrived for prefill in self._waiting)
            retry_after = min(60, max(1, math.ceil(now - oldest)))
            return Rejected(request.id, len(queued), retry_after)
        sequences = [Sequence(SequenceId(request.id, i), request) for i in range(request.n)]
        width = self._limits.max_batch_size
        for first in range(0, request.n, width):
            self._enqueue(sequences[first : first + width])
        return None

    def cancel(self, request: RequestId, index: int | None = None) -> None:
        """Forget a request or one of its choices, wherever it is. Unknown ids are ignored."""
        for sequence in list(self._sequences()):
            if sequence.id.request == request and index in (None, sequence.id.choice):
                self._remove(sequence)

    def fail(self, chunk: Chunk, message: str) -> list[TokenEvent]:
        """End every choice that needed this chunk with an error."""
        joined = {join.id for join in chunk.joins}
        victims = [s for s in self._running.values() if s.id in joined]
        for prefill in self._active:
            if prefill.key == chunk.prefill:
                victims += prefill.sequences
        return [self._end(s, FinishReason.ERROR, message) for s in victims]

    def fail_sequence(self, id: SequenceId, message: str) -> list[TokenEvent]:
        """End one choice with an error, wherever it is."""
        victims = [s for s in self._sequences() if s.id == id]
        return [self._end(s, FinishReason.ERROR, message) for s in victims]

    def expire(self, now: float) -> list[TokenEvent]:
        """End the sequences whose deadline has passed."""
        late = [
            s
            for s in self._sequences()
            if s.request.deadline is not None and s.request.deadline <= now
        ]
        return [self._end(s, FinishReason.DEADLINE) for s in late]

    def restart(self) -> list[Sequence]:
        """Send all computed work back to the queue, output kept, after the device lost it.

        Returns the sequences that were live. Results of steps in flight must not be reported.
        """
        live = [*self._running.values(), *self._finishing.values()]
        self._waiting += self._active
        for prefill in self._active:
            prefill.computed = 0
            self._cache.leave(prefill.ticket)
        self._leave_computed()
        self._active, self._running, self._finishing = [], {}, {}
        self._drops, self._tails, self._ended = [], [], []
        for sequence in live:
            sequence.in_flight = 0
            self._enqueue([sequence])
        return live

    def waiting_requests(self) -> set[RequestId]:
        """Requests of which nothing has been computed yet."""
        touched = {s.request.id for s in (*self._running.values(), *self._finishing.values())}
        touched |= {prefill.request.id for prefill in self._active}
        touched |= {p.request.id for p in self._waiting if p.sequences[0].output}
        return {prefill.request.id for prefill in self._waiting} - touched

    # -- a step --------------------------------------------------------------------------

    def schedule(self, now: float) -> Step | None:
        """The next step, or None when there is nothing to do. Computed counts move on here."""
        self._retire_exhausted()
        drops, self._drops = tuple(self._drops), []
        tails, self._tails = tuple(self._tails), []
        decodes = tuple(self._running)
        feeds, row_cuts = self._advance_rows()
        ended, self._ended = self._ended, []
        plan = self._plan_prefills(now, ended, decoding=bool(decodes))
        if not (drops or decodes or plan.chunks):
            return None
        return Step(
            drops=drops,
            tails=tails,
            decodes=decodes,
            feeds=feeds,
            row_cuts=tuple(row_cuts),
            restores=tuple(plan.restores),
            chunks=tuple(plan.chunks),
            admissions=tuple(plan.admissions),
        )

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
            sequence = self._running.get(id) or self._finishing.get(id)
            if sequence is not None:
                sequence.in_flight -= 1
                events += self._take(sequence, row)
        for failure in result.failures:
            events += self.fail(failure.chunk, failure.message)
        for chunk in result.lost:
            self._compute_afresh(chunk)
        if result.chunks_done:  # not before: a restore needs what its ticket holds
            self._leave_computed()
        return events

    @property
    def load(self) -> Load:
        waiting = sum(len(prefill.sequences) for prefill in self._waiting)
        prefilling = sum(len(prefill.sequences) for prefill in self._active)
        return Load(waiting, prefilling, len(self._running) + len(self._finishing))

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens that are to be computed for those who wait."""
        return sum(prefill.remaining for prefill in self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(
            self._waiting or self._active or self._running or self._finishing or self._drops
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself."""
        ids = [sequence.id for sequence in self._sequences()]
        assert len(ids) == len(set(ids)), "a sequence is in two places"
        assert self._rows_taken() <= self._limits.max_batch_size, "more rows than the batch holds"
        assert not set(self._drops) & set(self._running), "a dropped row is still live"
        for prefill in (*self._waiting, *self._active):
            assert prefill.sequences, "a prefill without sequences"
            assert 0 <= prefill.computed <= prefill.target, "computed out of range"
        for sequence in (*self._running.values(), *self._finishing.values()):
            launched = len(sequence.output) + sequence.in_flight
            assert 0 <= launched <= sequence.request.sampling.max_tokens, "too many tokens"
        assert all(prefill.computed == 0 for prefill in self._waiting), "waiting but computed"

    # -- inside --------------------------------------------------------------------------

    def _enqueue(self, sequences: list[Sequence]) -> None:
        request = sequences[0].request
        tokens = sequences[0].context[:-1]
        ticket = self._cache.enter(tokens, request.salt, request.marks)
        self._waiting.append(Prefill(sequences, self._order, ticket, expected=ticket.known))
        self._order += 1

    def _compute_afresh(self, chunk: Chunk) -> None:
        """A restore has failed: its prompt goes back to the queue and reuses nothing."""
        sequences = [self._running.pop(j.id) for j in chunk.joins if j.id in self._running]
        for prefill in [p for p in self._active if p.key == chunk.prefill]:
            sequences += prefill.sequences
            self._active.remove(prefill)
            self._cache.leave(prefill.ticket)
        if sequences:
            self._enqueue(sequences)
            self._waiting[-1].ticket.reuses = False

    def _sequences(self) -> Iterator[Sequence]:
        for prefill in (*self._waiting, *self._active):
            yield from prefill.sequences
        yield from self._running.values()
        yield from self._finishing.values()

    def _rows_taken(self) -> int:
        return len(self._running) + sum(len(prefill.sequences) for prefill in self._active)

    def _retire_exhausted(self) -> None:
        """Rows whose last token is already launched leave the batch before it is read."""
        for sequence in [s for s in self._running.values() if s.exhausted]:
            self._finishing[sequence.id] = self._running.pop(sequence.id)
            self._drop_row(sequence)

    def _advance_rows(self) -> tuple[dict[SequenceId, tuple[int, ...]], list[RowCut]]:
        """Every live row is fed its newest token, and maybe some that must follow it; a row that
        completes a block with them is cut."""
        feeds, cuts = {}, []
        for sequence in self._running.values():
            ahead = sequence.feed(self._feedable(sequence))
            if ahead:
                feeds[sequence.id] = ahead
            cut = self._cache.cut_of_row(sequence.fed, sequence)
            if cut is not None:
                cuts.append(RowCut(sequence.id, sequence.fed, cut))
        return feeds, cuts

    def _feedable(self, sequence: Sequence) -> int:
        """How many forced tokens go into the next step: not beyond the block, which is cut at its
        end, and one token is to be sampled."""
        size = self._cache.layout.block_size
        room = sequence.request.sampling.max_tokens - len(sequence.output) - 1
        count = min(len(sequence.forced), size - 1 - sequence.fed % size, room)
        if len(self._running) == 1:
            return count
        return count if self._limits.feeds_unevenly and count >= _FEWEST_FORCED else 0

    def _plan_prefills(
        self, now: float, ended: list[Sequence], *, decoding: bool
    ) -> "_PrefillPlan":
        limits = self._limits
        budget = limits.prefill_chunk_tokens if decoding else limits.max_batched_tokens
        plan = _PrefillPlan()
        blocked = False
        for prefill in sorted((*self._waiting, *self._active), key=lambda p: self._turn(p, now)):
            if self._must_wait(prefill) or _continues(prefill, ended):
                continue
            if prefill.ticket.waiting and (blocked or not self._has_rows_for(prefill)):
                blocked = True
                continue
            if plan.tokens and plan.tokens + self._next_length(prefill) > budget:
                break
            if prefill.ticket.waiting:
                self._admit(prefill, plan)
            if not self._take_chunk(prefill, plan):
                break
        return plan

    def _must_wait(self, prefill: Prefill) -> bool:
        """Whether its next block is under way elsewhere. Who has waited knows more afterwards."""
        if not prefill.ticket.waiting:
            return False
        waits = self._cache.must_wait(prefill.ticket)
        if prefill.waited and not waits:
            prefill.expected = self._cache.expected(prefill.ticket)
        prefill.waited = waits
        return waits

    def _next_length(self, prefill: Prefill) -> int:
        """Tokens of the next chunk, as far as can be known before its turn."""
        at = max(prefill.computed, prefill.expected)
        return self._cache.next_stop(prefill.ticket, at, self._limits.grid_at(at)) - at

    def _admit(self, prefill: Prefill, plan: "_PrefillPlan") -> None:
        lookup = self._cache.admit(prefill.ticket)
        prefill.expected, prefill.computed = 0, lookup.cached
        if lookup.plan is not None:
            plan.restores.append(Restore(prefill.key, lookup.plan))
        if not any(sequence.output for sequence in prefill.sequences):
            admission = Admission(prefill.request.id, lookup.cached, lookup.known, lookup.miss)
            plan.admissions.append(admission)
        self._waiting.remove(prefill)
        self._active.append(prefill)

    def _take_chunk(self, prefill: Prefill, plan: "_PrefillPlan") -> bool:
        """Plan the next chunk. False when it does not end its prompt: it is the step's last."""
        start = prefill.computed
        stop = self._cache.next_stop(prefill.ticket, start, self._limits.grid_at(start))
        last = stop == prefill.target
        cuts = self._cache.cuts_of_chunk(prefill.ticket, start, stop, prefill)
        joins = prefill.joins() if last else ()
        tokens = prefill.context[start:stop]
        plan.chunks.append(Chunk(prefill.key, start, tokens, joins, tuple(cuts)))
        prefill.computed = stop
        if last:
            self._active.remove(prefill)
            self._computed.append(prefill.ticket)
            for sequence in prefill.sequences:
                sequence.fed = stop
                self._running[sequence.id] = sequence
        return last

    def _leave_computed(self) -> None:
        computed, self._computed = self._computed, []
        for ticket in computed:
            self._cache.leave(ticket)

    def _turn(self, prefill: Prefill, now: float) -> tuple[int, float, int]:
        """Sort key: priority class (low first), aged remaining work, arrival."""
        waited = max(0.0, now - prefill.request.arrived)
        aged = prefill.remaining - waited * self._limits.ageing_tokens_per_second
        return prefill.request.priority, aged, prefill.order

    def _has_rows_for(self, prefill: Prefill) -> bool:
        return self._rows_taken() + len(prefill.sequences) <= self._limits.max_batch_size

    def _take(self, sequence: Sequence, row: SampledRow) -> list[TokenEvent]:
        unsent, sequence.unsent = sequence.unsent, ()
        return [TokenEvent(*sequence.id, token=t) for t in unsent] + [self._taken(sequence, row)]

    def _taken(self, sequence: Sequence, row: SampledRow) -> TokenEvent:
        sampling = sequence.request.sampling
        if row.problem:
            return self._end(sequence, FinishReason.ERROR, row.problem)
        if row.token in sampling.stop_ids and len(sequence.output) >= sampling.min_tokens:
            sequence.ended_by = row.token
            return self._end(sequence, FinishReason.STOP)
        sequence.output.append(row.token)
        sequence.forced = row.forced
        finish = FinishReason.STOP if row.done else None
        if len(sequence.output) == sampling.max_tokens:
            finish = finish or FinishReason.LENGTH
        if finish:
            self._remove(sequence)
        return TokenEvent(*sequence.id, token=row.token, logprobs=row.logprobs, finish=finish)

    def _end(self, sequence: Sequence, why: FinishReason, message: str = "") -> TokenEvent:
        self._remove(sequence)
        return TokenEvent(*sequence.id, finish=why, error=message)

    def _remove(self, sequence: Sequence) -> None:
        """Take a sequence out of wherever it is; the runner is told in the next step."""
        if self._running.pop(sequence.id, None) is not None:
            self._drop_row(sequence)
        elif self._finishing.pop(sequence.id, None) is None:
            self._remove_from_prefill(sequence)

    def _drop_row(self, sequence: Sequence) -> None:
        """The row leaves in the next step; what it has computed stays reusable."""
        self._drops.append(sequence.id)
        self._ended.append(sequence)
        tail = self._cache.tail_of_row(sequence.fed, sequence)
        if tail is not None:
            self._tails.append(RowCut(sequence.id, sequence.fed, tail))

    def _remove_from_prefill(self, sequence: Sequence) -> None:
        for queue in (self._waiting, self._active):
            for prefill in queue:
                if sequence in prefill.sequences:
                    prefill.sequences.remove(sequence)
                    if not prefill.sequences:
                        queue.remove(prefill)
                        self._cache.leave(prefill.ticket)
                        if queue is self._active:
                            self._drops.append(prefill.key)
                    return


def _continues(prefill: Prefill, ended: list[Sequence]) -> bool:
    """Whether a waiting prompt goes on where a row has just ended: what is cut of its last tokens
    can be used in the next step."""
    if not prefill.ticket.waiting:
        return False
    prompts = (sequence.request.tokens for sequence in ended)
    return any(prefill.context[: len(tokens)] == tokens for tokens in prompts)


@dataclass(slots=True)
class _PrefillPlan:
    """A step's prefill work while it is being put together."""

    chunks: list[Chunk] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)
