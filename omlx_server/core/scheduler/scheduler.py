"""Chooses each step's sequences: all rows, and prompts by `prefill.py`. Pure; mlx thread."""

import math
from functools import partial

from omlx_server.core.blocks.block import PayloadId, Size
from omlx_server.core.memory.guard import MemoryGuard, Relief
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import (
    NOT_FINITE,
    FinishReason,
    Rejected,
    Request,
    RequestId,
    SampledRow,
    SampledToken,
    TokenEvent,
)
from omlx_server.core.scheduler.drafts import DraftPlan, Drafts
from omlx_server.core.scheduler.limits import Load, SchedulerLimits
from omlx_server.core.scheduler.memory_admission import HEADROOM, Admission, AtWork
from omlx_server.core.scheduler.order import SIZES, PrefillOrder
from omlx_server.core.scheduler.preemption import Preemption
from omlx_server.core.scheduler.prefill import PrefillPlanner
from omlx_server.core.scheduler.queues import AHEAD, SequenceQueues, Steadiness
from omlx_server.core.scheduler.sequence import PrefillState, Sequence
from omlx_server.core.scheduler.standings import Standings
from omlx_server.core.speculation.speculation import DraftController
from omlx_server.core.step import Chunk, Cut, RowCut, SequenceId, Step, StepResult

_LONGEST_RETRY_SECONDS = 600


class Scheduler:
    """Turns requests into steps and sampled tokens into events."""

    def __init__(
        self,
        limits: SchedulerLimits,
        cache: PrefixCache,
        guard: MemoryGuard | None = None,
        speculation: DraftController | None = None,
    ) -> None:
        self._limits = limits
        self._most_rows = limits.max_batch_size
        self._cache = cache
        self.admission = Admission(guard, cache, limits.grouping)
        self.prefill_order = PrefillOrder(limits)
        self.queues = SequenceQueues(cache)
        self._steadiness = Steadiness(self.queues)
        self._prefills = PrefillPlanner(
            limits, cache, self.queues, self.admission, self.prefill_order
        )
        self._drafts = Drafts(speculation, cache.layout)
        self._preemption = Preemption(cache, self.queues, self.admission, self.prefill_order)

    def change(self, limits: SchedulerLimits) -> None:
        """Use other `limits`. Raises ValueError for another chunk size."""
        if self._limits.chunks != limits.chunks:
            raise ValueError("chunks can't change their size")
        self._limits = self._prefills.limits = limits
        self._most_rows = max(self._most_rows, limits.max_batch_size)
        self.prefill_order.change(limits)

    def all_fit(self, guard: MemoryGuard) -> bool:
        """Return whether each sequence would still fit alone under another guard."""
        admission = Admission(guard, self._cache, self._limits.grouping)
        groups = self.queues.groups()
        return all(admission.fits_alone(len(g[0].context) + HEADROOM, len(g)) for g in groups)

    def add(self, request: Request) -> Rejected | None:
        """Queue a request, or refuse it when the queue is full or it can't ever fit."""
        width = self._widest_prefill(request)
        if not width:
            self.admission.note(Relief.REJECT)
            reason = self.admission.explain(len(request.tokens) + HEADROOM)
            return Rejected(request.id, 0, 0, reason)
        if not self.queues.has_place_for(request, self._limits.max_queue):
            waiting = len({prefill.request.id for prefill in self.queues.waiting})
            seconds = self.prefill_order.backlog(request, self._unfinished_prompts())
            retry_after = min(_LONGEST_RETRY_SECONDS, math.ceil(max(1.0, seconds)))
            return Rejected(request.id, waiting, retry_after)
        self.queues.add(request, width)
        return None

    def promise_first_token(self, request: Request, now: float) -> float:
        """Return the seconds promised for a new request's first tokens; 0 where unknown."""
        seconds = self.prefill_order.longest_wait(request, self._unfinished_prompts())
        for prefill in self.queues.waiting:
            if prefill.request is request and seconds:
                prefill.promise_first_token(now + seconds)
        return seconds

    def cancel(self, request: RequestId, index: int | None = None) -> None:
        for sequence in list(self.queues.sequences()):
            if sequence.id.request == request and index in (None, sequence.id.choice):
                self.queues.remove(sequence)

    def fail(self, chunk: Chunk, message: str) -> list[TokenEvent]:
        """End the sequences of a chunk that failed."""
        joined = {join.id for join in chunk.joins}
        victims = [s for s in self.queues.running.values() if s.id in joined]
        victims += [s for p in self.queues.active if p.key == chunk.prefill for s in p.sequences]
        return [self._end(s, FinishReason.ERROR, message) for s in victims]

    def fail_sequence(self, id: SequenceId, message: str) -> list[TokenEvent]:
        victims = [s for s in self.queues.sequences() if s.id == id]
        return [self._end(s, FinishReason.ERROR, message) for s in victims]

    def fail_newest(self) -> list[TokenEvent]:
        """End the newest request, because a step had no memory."""
        rows = self.queues.rows()
        prompts = [s for prefill in self.queues.active for s in prefill.sequences]
        newest = max((*rows, *prompts), key=Sequence.last_in_line, default=None)
        if newest is None:
            return []
        self.admission.note(Relief.REJECT)
        victims = [s for s in self.queues.sequences() if s.id.request == newest.id.request]
        reason = self.admission.explain(len(newest.context))
        return [self._end(s, FinishReason.MEMORY, reason) for s in victims]

    def expire(self, now: float) -> list[TokenEvent]:
        late = [
            s
            for s in self.queues.sequences()
            if s.request.deadline is not None and s.request.deadline <= now
        ]
        return [self._end(s, FinishReason.DEADLINE) for s in late]

    @property
    def standings(self) -> Standings:
        return Standings(self.queues, self._cache, self.admission, self._limits)

    def relieve(self, now: float) -> list[TokenEvent]:
        """Preempt the newest until all rows can decode once more; end what can't ever fit."""
        queues = self.queues
        queues.retire_exhausted()
        self.admission.reserve(self._at_work())
        events = list[TokenEvent]()
        while not self.admission.make_room_for_rows(self._at_work(), now):
            if len(queues.running) + len(queues.active) > 1 or self.admission.shares_memory:
                self._preempt_newest()
            else:
                [last] = queues.running.values()
                events.append(self._end_for_memory(last))
        if not (queues.active or queues.rows()):
            events += self._refuse_the_too_large()
        lasts = self.admission.fits_for_long(self._at_work(), now, AHEAD)
        self._steadiness.note_look(AHEAD if lasts else 0)
        return events

    def is_steady(self) -> bool:
        self.queues.retire_exhausted()
        return self._steadiness.holds

    def schedule(self, now: float) -> Step | None:
        """Return the next step, if any. Sequences then count its tokens."""
        queues = self.queues
        queues.retire_exhausted()
        self.prefill_order.begin_step(now)
        self._preemption.preempt_for_next(self._limits, self._at_work, now)
        drops, tails, ended = queues.take_drops()
        rows = list(queues.running.values())
        planned, row_cuts = self._advance_rows(now)
        plan = self._prefills.plan(now, ended, decoding=bool(rows))
        drops += queues.take_drops()[0]  # prompts that made room for another one
        self.prefill_order.note_plan(rows, plan.prompts, plan.chunks)
        if not (drops or rows or plan.chunks):
            return None
        if tails or row_cuts or plan.chunks:
            queues.cut_sources.end_step()
        return Step(
            drops=drops,
            tails=tails,
            decodes=tuple([row.id for row in rows]),
            drafts=planned.drafts,
            asks=planned.asks,
            row_cuts=tuple(row_cuts),
            restores=tuple(plan.restores),
            chunks=tuple(plan.chunks),
            admitted=tuple(plan.admitted),
            drain_pool=self.admission.drains_pool,
        )

    def awaits_tokens(self, now: float) -> bool:
        """Return whether to read tokens in flight first, for drafts."""
        rows, fits = list(self.queues.running.values()), partial(self._fits_as_is, now)
        return self._drafts.will_follow(rows, self._limits, fits)

    def note_chunk_time(self, chunks: tuple[Chunk, ...], seconds: float) -> None:
        self.prefill_order.charge_chunks(chunks, seconds)

    def keep(
        self, cut: Cut, block: Size | None, checkpoint: Size | None
    ) -> tuple[PayloadId | None, PayloadId | None]:
        """Note a cut's block and checkpoint, before `update`. Returns the ids that keep them."""
        source = self.queues.cut_sources.take(cut)
        if isinstance(source, Sequence) and source.is_unusable:
            return None, None
        place = source.place(cut, self._cache.layout.block_size)
        block_id = checkpoint_id = None
        if block is not None:
            block_id = self._cache.store_block(place, block, source.users)
        if checkpoint is not None and cut.worth is not None:
            checkpoint_id = self._cache.store_checkpoint(place, checkpoint, cut.worth)
        return block_id, checkpoint_id

    def update(self, result: StepResult) -> list[TokenEvent]:
        events, queues = [], self.queues
        for id, row in result.rows.items():
            if (sequence := queues.running.get(id) or queues.row(id)) is not None:
                if row.drafted or self._drafts.learns:
                    self._drafts.learn(sequence, row)
                sequence.read(row)
                events += self._row_events(sequence, row)
                if queues.preempted:
                    queues.requeue_when_read(sequence)
        events += [e for failed in result.failures for e in self.fail(failed.chunk, failed.message)]
        if result.ends_newest:
            events += self.fail_newest()
        for chunk in result.lost:
            self.queues.compute_afresh(chunk, reuses=False)
        for chunk in result.starved:
            self.queues.compute_afresh(chunk, reuses=True)
        if result.chunks_launched:  # not before: a restore needs what its handle holds
            self.queues.leave_joined()
        return events

    @property
    def load(self) -> Load:
        queues = self.queues
        waiting = sum(len(prefill.sequences) for prefill in queues.waiting) + len(queues.preempted)
        prefilling = sum(len(prefill.sequences) for prefill in queues.active)
        return Load(waiting, prefilling, len(queues.running) + len(queues.finishing))

    def oldest(self) -> dict[str, float]:
        """Return the oldest arrival without a first token, by prompt size (SIZES)."""
        oldest: dict[str, float] = {}
        for prefill in self.queues.waiting:
            if not prefill.has_answered:
                size = SIZES[self.prefill_order.size(prefill.target)]
                arrived = prefill.request.arrived
                oldest[size] = min(arrived, oldest.get(size, arrived))
        return oldest

    @property
    def waiting_tokens(self) -> int:
        return sum(prefill.remaining for prefill in self.queues.waiting)

    @property
    def has_work(self) -> bool:
        return self.queues.has_work

    def check_invariants(self) -> None:
        self.queues.check_invariants()
        assert self.queues.rows_taken <= self._most_rows * 3 // 2, "more rows than there may be"

    def _advance_rows(self, now: float) -> tuple[DraftPlan, list[RowCut]]:
        rows, cuts = list(self.queues.running.values()), list[RowCut]()
        plan = self._drafts.plan(rows, self._limits, partial(self._fits_as_is, now))
        self._steadiness.note_fed(1 + plan.depth)
        feed, size = plan.feed if plan.depth else Sequence.feed, self._cache.layout.block_size
        for sequence in rows:
            feed(sequence)
            cut = None if sequence.fed % size else self._cache.cutter.of_row(sequence.fed)
            if cut is not None:
                self.queues.cut_sources.note((cut,), sequence)
                cuts.append(RowCut(sequence.id, sequence.fed, cut))
        return plan, cuts

    def _fits_as_is(self, now: float, more: int) -> bool:
        return self.admission.fits_as_is(self._at_work(), now, more)

    def _row_events(self, sequence: Sequence, row: SampledRow) -> list[TokenEvent]:
        *right, last = row.tokens
        events = (
            [self._token_event(sequence, token, accepted=True) for token in right] if right else []
        )
        rejected = row.rejected if row.drafted else 0
        if last.id == NOT_FINITE:
            return [*events, self._end_unusable(sequence, rejected)]
        if row.problem:
            sequence.ended_by = last.id  # it may be fed already
            reason = FinishReason.GRAMMAR if row.too_costly else FinishReason.ERROR
            return [*events, self._end(sequence, reason, row.problem, rejected)]
        sequence.forced = row.forced
        events.append(self._token_event(sequence, last, done=row.done, rejected=rejected))
        return events

    def _token_event(
        self,
        sequence: Sequence,
        token: SampledToken,
        *,
        done: bool = False,
        accepted: bool = False,
        rejected: int = 0,
    ) -> TokenEvent:
        sampling = sequence.request.sampling
        if token.id in sampling.stop_ids and len(sequence.output) >= sampling.min_tokens:
            sequence.ended_by = token.id
            self.prefill_order.predictions.note_answer(len(sequence.output))
            return self._end(sequence, FinishReason.STOP, rejected=rejected)
        sequence.output.append(token.id)
        finish = FinishReason.STOP if done else None
        if len(sequence.output) == sampling.max_tokens:
            finish = finish or FinishReason.LENGTH
        if finish:
            self.prefill_order.predictions.note_answer(len(sequence.output))
            self.queues.remove(sequence)
        return TokenEvent(
            *sequence.id,
            token=token.id,
            logprobs=token.logprobs,
            finish=finish,
            accepted=accepted,
            rejected=rejected,
        )

    def _end(
        self, sequence: Sequence, reason: FinishReason, message: str = "", rejected: int = 0
    ) -> TokenEvent:
        self.queues.remove(sequence)
        return TokenEvent(*sequence.id, finish=reason, error=message, rejected=rejected)

    def _end_unusable(self, sequence: Sequence, rejected: int) -> TokenEvent:
        """End a sequence whose logits are no numbers, and drop the blocks that may be the cause."""
        sequence.is_unusable = True
        self._cache.forget(sequence.root, sequence.context, sequence.proven)
        users = [other.blocks for other in self.queues.sequences()]
        users += [prefill.handle.blocks for prefill in self._unfinished_prompts()]
        self._cache.uses.forget_removed(users)
        return self._end(sequence, FinishReason.MODEL_ERROR, rejected=rejected)

    def _unfinished_prompts(self) -> list[PrefillState]:
        return [*self.queues.waiting, *self.queues.active]

    def _widest_prefill(self, request: Request) -> int:
        # Returns how many choices fit when one prefill has them; 0 where none fits.
        width = min(request.n, self._limits.max_batch_size)
        while width and not self.admission.fits_alone(len(request.tokens) + HEADROOM, width):
            width -= 1
        return width

    def _at_work(self) -> AtWork:
        queues = self.queues
        handles = [prefill.handle for prefill in (*queues.waiting, *queues.active)]
        return AtWork(queues.running.values(), queues.active, handles, tuple(queues.ended))

    def _preempt_newest(self) -> None:
        self.admission.note(Relief.PREEMPT)
        prompts = [prefill.sequences[0] for prefill in self.queues.active]
        self.queues.preempt(
            max((*self.queues.running.values(), *prompts), key=Sequence.last_in_line).id
        )

    def _refuse_the_too_large(self) -> list[TokenEvent]:
        events, queue = [], list(self.queues.waiting)
        for prefill in queue:
            if self.admission.fits_alone(len(prefill.context) + 1, len(prefill.sequences)):
                continue
            if len(prefill.sequences) > 1:
                queue += self.queues.take_apart(prefill)  # one alone may not fit either
            else:
                events.append(self._end_for_memory(prefill.sequences[0]))
        return events

    def _end_for_memory(self, sequence: Sequence) -> TokenEvent:
        self.admission.note(Relief.REJECT)
        if sequence.output:
            return self._end(sequence, FinishReason.LENGTH)
        reason = self.admission.explain(len(sequence.context))
        return self._end(sequence, FinishReason.MEMORY, reason)
