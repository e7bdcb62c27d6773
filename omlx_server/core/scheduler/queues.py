"""The queues of sequences. Pure. A sequence is in exactly one place:

waiting --> active --> running --> finishing --> gone
   ^-----------+-----> preempted
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from omlx_server.core.blocks.lookup import BlocksInUse, PrefixHandle
from omlx_server.core.clients import may_wait
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request, RequestId
from omlx_server.core.scheduler.sequence import PrefillState, Sequence, TokenSource
from omlx_server.core.step import Chunk, Cut, RowCut, SequenceId

AHEAD = 32
"""The number of tokens per row for which memory is checked in advance."""


class CutSources:
    """The sources of planned cuts of the three newest steps with cuts: older ones are done."""

    def __init__(self) -> None:
        self._steps = deque[dict[int, TokenSource]]([{}], maxlen=3)

    def note(self, cuts: Iterable[Cut], source: TokenSource) -> None:
        self._steps[-1].update({cut.number: source for cut in cuts})

    def end_step(self) -> None:
        """Later cuts belong to the next step. Steps without cuts need no call."""
        self._steps.append({})

    def take(self, cut: Cut) -> TokenSource:
        """Raises KeyError for a cut that was not noted."""
        step = next((step for step in self._steps if cut.number in step), {})
        return step.pop(cut.number)


class SequenceQueues:
    """All sequences of one model. `drops`, `tails` and `ended` are for the next step."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self.waiting: list[PrefillState] = []
        self.active: list[PrefillState] = []
        self.running: dict[SequenceId, Sequence] = {}
        self.finishing: dict[SequenceId, Sequence] = {}
        self.preempted: dict[SequenceId, Sequence] = {}
        self.drops: list[SequenceId] = []
        self.tails: list[RowCut] = []
        self.ended: list[Sequence] = []
        self._joined: list[PrefixHandle] = []  # their last chunk is not launched yet
        self.queued = 0
        self.cut_sources = CutSources()

    def sequences(self) -> Iterator[Sequence]:
        for prefill in (*self.waiting, *self.active):
            yield from prefill.sequences
        yield from self.rows()

    def rows(self) -> list[Sequence]:
        places = self.running, self.finishing, self.preempted
        return [sequence for place in places for sequence in place.values()]

    @property
    def clients(self) -> set[bytes]:
        return {sequence.request.owner for sequence in self.sequences()}

    def row(self, id: SequenceId) -> Sequence | None:
        return self.running.get(id) or self.finishing.get(id) or self.preempted.get(id)

    def untouched_requests(self) -> set[RequestId]:
        """Return the requests of which nothing was computed yet."""
        touched = {sequence.request.id for sequence in self.rows()}
        touched |= {prefill.request.id for prefill in self.active}
        touched |= {prefill.request.id for prefill in self.waiting if prefill.has_answered}
        return {prefill.request.id for prefill in self.waiting} - touched

    @property
    def has_work(self) -> bool:
        rows = self.running or self.finishing or self.preempted
        return bool(rows or self.waiting or self.active or self.drops)

    @property
    def is_computing(self) -> bool:
        return bool(self.running or self.finishing or self.active)

    @property
    def rows_taken(self) -> int:
        return len(self.running) + sum(len(prefill.sequences) for prefill in self.active)

    def has_rows_for(self, prefill: PrefillState, most: int) -> bool:
        taken = self.rows_taken
        if not taken:
            return True  # alone it may be wider than the batch
        needed = taken + len(prefill.sequences)
        return needed <= most or needed <= self.most_rows_for(prefill.request, most)

    def most_rows_for(self, request: Request, most: int) -> int:
        """Return `most`, and one row for each further client, but not beside a better class."""
        at_work = self._at_work()
        if any(one.priority < request.priority for one in at_work):
            return most
        return _most_rows(most, len({one.owner for one in (*at_work, request)}))

    def may_be_more(self, most: int) -> bool:
        """Return whether any waiting prompt could get a row."""
        at_work = {one.owner for one in self._at_work()}
        waiting = {prefill.sequences[0].request.owner for prefill in self.waiting}
        return self.rows_taken < _most_rows(most, len(at_work) + (not waiting <= at_work))

    def _at_work(self) -> list[Request]:
        rows = [row.request for row in self.running.values()]
        return rows + [prefill.request for prefill in self.active]

    def has_place_for(self, request: Request, most: int) -> bool:
        """Return whether a request may wait: clients share the places."""
        queued = {prefill.request.id: prefill.request for prefill in self.waiting}.values()
        # The conversations of a single client share them likewise.
        depth = 1 if len({other.owner for other in (*queued, request)}) > 1 else 2
        counts = Counter(other.owner_path[:depth] for other in queued)
        return may_wait(counts, request.owner_path[:depth], most)

    def check_invariants(self) -> None:
        ids = [sequence.id for sequence in self.sequences()]
        assert len(ids) == len(set(ids)), "a sequence is in two places"
        assert not set(self.drops) & set(self.running), "a dropped row is still live"
        for prefill in (*self.waiting, *self.active):
            assert prefill.sequences, "a prefill without sequences"
            assert 0 <= prefill.computed <= prefill.target, "computed out of range"
        for sequence in self.rows():
            launched = len(sequence.output) + sequence.in_flight
            assert 0 <= launched <= sequence.request.sampling.max_tokens, "too many tokens"
        assert all(prefill.computed == 0 for prefill in self.waiting), "waiting but computed"

    def add(self, request: Request, width: int) -> None:
        sequences = [Sequence(SequenceId(request.id, i), request) for i in range(request.n)]
        for first in range(0, request.n, width):
            self.enqueue(sequences[first : first + width])

    def enqueue(self, sequences: list[Sequence]) -> PrefillState:
        request = sequences[0].request
        tokens = sequences[0].context[:-1]
        at, owner = request.checkpoints_at, request.owner
        handle = self._cache.enter(tokens, request.block_salt, at, owner)
        prefill = PrefillState(sequences, self.queued, handle, expected=handle.known)
        self.waiting.append(prefill)
        self.queued += 1
        return prefill

    def take_apart(self, prefill: PrefillState) -> list[PrefillState]:
        """Queue the sequences of a waiting prefill one by one."""
        self.waiting.remove(prefill)
        self._cache.leave(prefill.handle)
        return [self.enqueue([sequence]) for sequence in prefill.sequences]

    def activate(self, prefill: PrefillState) -> None:
        self.waiting.remove(prefill)
        self.active.append(prefill)

    def join(self, prefill: PrefillState) -> None:
        self.active.remove(prefill)
        self._joined.append(prefill.handle)
        for sequence in prefill.sequences:
            sequence.fed = sequence.prefilled = prefill.target
            sequence.admitted = prefill.admitted
            sequence.blocks = self._cache.uses.share(prefill.handle.blocks)
            sequence.root, sequence.keys = prefill.handle.root, prefill.handle.keys.copy()
            self.running[sequence.id] = sequence

    def leave_joined(self) -> None:
        """Give back the leases of prompts whose last chunk is launched."""
        joined, self._joined = self._joined, []
        for handle in joined:
            self._cache.leave(handle)

    def retire_exhausted(self) -> None:
        for sequence in exhausted_rows(self.running.values()):
            self.finishing[sequence.id] = self.running.pop(sequence.id)
            self._drop_row(sequence)

    def remove(self, sequence: Sequence) -> None:
        id = sequence.id
        if self.running.pop(id, None) is not None:
            self._drop_row(sequence)
        elif not (self.finishing.pop(id, None) or self.preempted.pop(id, None)):
            self._remove_from_prefill(sequence)

    def preempt(self, id: SequenceId) -> None:
        for prefill in self.active:
            if any(sequence.id == id for sequence in prefill.sequences):
                self.active.remove(prefill)
                self.drops.append(prefill.key)
                self._cache.leave(prefill.handle)
                self.enqueue(prefill.sequences)
                return
        sequence = self.preempted[id] = self.running.pop(id)
        self._drop_row(sequence)
        self.requeue_when_read(sequence)

    def preempt_lost(self, ids: Iterable[SequenceId]) -> None:
        for id in ids:
            if id in self.running or any(prefill.key == id for prefill in self.active):
                self.preempt(id)

    def requeue_when_read(self, sequence: Sequence) -> None:
        """Queue a preempted row once no token of it is in flight."""
        if not sequence.in_flight and self.preempted.pop(sequence.id, None) is not None:
            sequence.promised_by = None if sequence.output else sequence.promised_by
            self.enqueue([sequence])

    def compute_afresh(self, chunk: Chunk, *, reuses: bool) -> None:
        """Queue the prompt of a failed chunk again, with or without blocks from the cache."""
        joined = [join.id for join in chunk.joins if join.id in self.running]
        sequences = [self.running.pop(id) for id in joined]
        self._end_use(sequences)
        for prefill in [p for p in self.active if p.key == chunk.prefill]:
            sequences += prefill.sequences
            self.active.remove(prefill)
            self._cache.leave(prefill.handle)
        if sequences:
            self.enqueue(sequences).handle.reuses = reuses

    def restart(self) -> list[Sequence]:
        """Queue all work again; steps in flight are void. Returns the sequences that were live."""
        live = self.rows()
        self._end_use(live)
        self.waiting += self.active
        for prefill in self.active:
            prefill.computed = 0
            self._cache.leave(prefill.handle)
        self.leave_joined()
        self.active, self.running, self.finishing, self.preempted = [], {}, {}, {}
        self.drops, self.tails, self.ended = [], [], []
        self.cut_sources = CutSources()
        for sequence in live:
            sequence.in_flight = 0
            self.enqueue([sequence])
        return live

    def groups(self) -> list[list[Sequence]]:
        """Return all sequences in groups of one context."""
        prefills = (*self.active, *self.waiting)
        return [[row] for row in self.rows()] + [prefill.sequences for prefill in prefills]

    def take_in(self, groups: Iterable[list[Sequence]]) -> None:
        """Queue another scheduler's sequences; their tokens in flight are void."""
        for sequences in groups:
            for sequence in sequences:
                sequence.in_flight = 0
                sequence.blocks = BlocksInUse()
            self._cache.read_ahead.waits.stop(self.enqueue(sequences).handle)

    def take_drops(self) -> tuple[tuple[SequenceId, ...], tuple[RowCut, ...], list[Sequence]]:
        """Take `drops`, `tails` and `ended` for the next step."""
        leaving = tuple(self.drops), tuple(self.tails), self.ended
        self.drops, self.tails, self.ended = [], [], []
        return leaving

    def _drop_row(self, sequence: Sequence) -> None:
        self.drops.append(sequence.id)
        self.ended.append(sequence)
        self._end_use([sequence])
        tail = self._cache.cutter.tail_of_row(sequence.fed)
        if tail is not None:
            self.cut_sources.note((tail,), sequence)
            self.tails.append(RowCut(sequence.id, sequence.fed, tail))

    def _end_use(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._cache.uses.end(sequence.blocks)

    def _remove_from_prefill(self, sequence: Sequence) -> None:
        for queue in (self.waiting, self.active):
            for prefill in queue:
                if sequence in prefill.sequences:
                    prefill.sequences.remove(sequence)
                    if not prefill.sequences:
                        queue.remove(prefill)
                        self._cache.leave(prefill.handle)
                        if queue is self.active:
                            self.drops.append(prefill.key)
                    return


def exhausted_rows(rows: Iterable[Sequence]) -> list[Sequence]:
    return [
        row for row in rows if len(row.output) + row.in_flight >= row.request.sampling.max_tokens
    ]


def _most_rows(most: int, clients: int) -> int:
    return most + min(most // 2, clients - 1)


class Steadiness:
    """Knows when memory need not be checked: it was enough, and nobody came or went since."""

    def __init__(self, queues: SequenceQueues) -> None:
        self._queues = queues
        self._tokens_left = 0
        self._seen_population = self._population

    def note_look(self, tokens: int) -> None:
        self._tokens_left, self._seen_population = tokens, self._population

    def note_fed(self, tokens: int) -> None:
        self._tokens_left -= tokens

    @property
    def holds(self) -> bool:
        """Whether the next step only decodes, and memory is enough."""
        return (
            self._tokens_left > 0
            and not self._queues.active
            and self._seen_population == self._population
        )

    @property
    def _population(self) -> tuple[int, int, int]:
        queues = self._queues
        return len(queues.running), len(queues.waiting), queues.queued
