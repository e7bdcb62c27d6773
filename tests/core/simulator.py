"""A pretend device for the scheduler: it holds rows, prefills and kept blocks as the runner would.

The token that a row samples is a fixed function of its context, so whatever the batch does, each
request has one right answer. Caches and payloads are the tokens themselves, so a block of another
sequence shows at once. Every rule that the runner relies on is asserted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omlx_server.core.blocks.block import NOTHING_KEPT, CacheLayout, LayerKind, PayloadId, Size
from omlx_server.core.blocks.lookup import RestorePlan
from omlx_server.core.memory.estimate import STRUCTURAL, Planner
from omlx_server.core.memory.guard import MemoryGuard
from omlx_server.core.memory.kv import Decode, Keeps, LayerKv, ModelShape, PrefillShape
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import (
    Admitted,
    FinishReason,
    Request,
    RequestId,
    SampledRow,
    SampledToken,
    SamplingParams,
    TokenEvent,
)
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.core.speculation.methods import DraftVerification, Method
from omlx_server.core.step import Chunk, Cut, RowCut, SequenceId, Step, StepResult
from omlx_server.engine.memory.account import MemoryAccount, MemoryShare
from tests.core.eager import Eager

VOCAB = 7
STOP = 6
TOKEN_BYTES = 10
STATE_BYTES = 100
ROOMY = HotBudget(nbytes=1 << 30, checkpoint_bytes=1 << 30, lattice_start=16)
KV = CacheLayout(frozenset({LayerKind.DELTA}), block_size=4)
WINDOWED = CacheLayout(frozenset({LayerKind.DELTA, LayerKind.WINDOW}), block_size=4, window=8)
HYBRID = CacheLayout(frozenset({LayerKind.DELTA, LayerKind.CHECKPOINT}), block_size=4)
RECURRENT = CacheLayout(frozenset({LayerKind.CHECKPOINT}), block_size=4)


class _Plain(Planner):
    """Steps take what is easily said; caches are those of any planner."""

    def prefill(self, prefill: PrefillShape) -> int:
        return 10 * prefill.rows * prefill.tokens

    def decode(self, decode: Decode) -> int:
        return 100 * decode.rows


PLANNER = _Plain(
    ModelShape(1, 1, 1, 1, 1, VOCAB, 1, layers=(LayerKv(Keeps.GROWING, TOKEN_BYTES),)), STRUCTURAL
)
"""Of a model whose caches take `TOKEN_BYTES` a token."""

Tokens = tuple[int, ...]


def next_token(context: Tokens, choice: int) -> int:
    """What the pretend model says after `context`."""
    return (sum(context) * 31 + len(context) * 7 + choice) % VOCAB


def right_answer(request: Request, choice: int) -> tuple[list[int], FinishReason]:
    context, output = request.tokens, list[int]()
    while len(output) < request.sampling.max_tokens:
        token = next_token((*context, *output), choice)
        if token in request.sampling.stop_ids and len(output) >= request.sampling.min_tokens:
            return output, FinishReason.STOP
        output.append(token)
    return output, FinishReason.LENGTH


class Foreseen:
    """A constraint that knows some of the tokens that come next. The device has them for it."""

    done = False
    problem = ""
    takes_drafts = True

    def copy(self) -> "Foreseen":
        return self

    def mask(self) -> bytes:
        raise NotImplementedError

    def take(self, token: int) -> None:
        raise NotImplementedError

    def forced(self) -> tuple[int, ...]:
        raise NotImplementedError


def foreseen(context: Tokens, choice: int) -> Tokens:
    """Up to nine of the tokens that follow, none of them the end."""
    tokens: Tokens = ()
    while len(tokens) < sum(context) % 10:
        token = next_token((*context, *tokens), choice)
        if token == STOP:
            break
        tokens = (*tokens, token)
    return tokens


def make_request(name: str, length: int, max_tokens: int, n: int = 1, **changes: Any) -> Request:
    tokens = tuple((ord(name[-1]) + i) % VOCAB for i in range(length))
    sampling = SamplingParams(max_tokens=max_tokens, stop_ids=frozenset({STOP}))
    return Request(RequestId(name), tokens, sampling, n=n, **changes)


@dataclass(frozen=True)
class Made:
    """What a cut gave: the tokens of a block, all tokens up to a state."""

    cut: Cut
    block: Tokens | None
    state: Tokens | None

    def sizes(self, layout: CacheLayout) -> tuple[Size | None, Size | None]:
        held = bool(layout.kinds - {LayerKind.CHECKPOINT})
        block = Size(len(self.block or ()) * TOKEN_BYTES * held, 1)
        state = Size(STATE_BYTES, 2)
        return block if self.block is not None else None, state if self.state is not None else None


@dataclass(frozen=True)
class Done:
    """A step of which the decode was executed. `tails` are of rows that left, `made` of live ones;
    so is `late`, which was cut when it was known which drafts were right."""

    step: Step
    result: StepResult
    tails: tuple[Made, ...]
    made: tuple[Made, ...]
    late: tuple[Made, ...]
    at_once: bool


@dataclass
class Device:
    """Rows that decode, prefills on their way, and the payloads that were kept. With
    `has_whole_images` chunks may end at their borders."""

    limits: SchedulerLimits
    layout: CacheLayout = KV
    rows: dict[SequenceId, Tokens] = field(default_factory=dict)
    ends: dict[SequenceId, frozenset[int]] = field(default_factory=dict)
    constrained: set[RequestId] = field(default_factory=set)
    drafted: int = 0
    accepted: int = 0
    prefills: dict[SequenceId, Tokens] = field(default_factory=dict)
    restored: dict[SequenceId, int] = field(default_factory=dict)
    kept: dict[PayloadId, Tokens] = field(default_factory=dict)
    has_whole_images: bool = False

    @property
    def live(self) -> int:
        """Bytes of rows and of prompts under way, each of its own length."""
        held = (*self.rows.values(), *self.prefills.values())
        return sum(map(len, held)) * TOKEN_BYTES

    def execute(self, step: Step) -> Done:
        tails = tuple(self._cut_row(cut) for cut in step.tails if cut.id in self.rows)
        for id in step.drops:
            self.rows.pop(id, None)
            self.prefills.pop(id, None)
        assert set(step.decodes) == set(self.rows), "the scheduler's rows are not the device's"
        at_once = step.verifies or any(id.request in self.constrained for id in self.rows)
        drafts = {**step.drafts, **{id: self._asked(id, count) for id, count in step.asks.items()}}
        sampled = {id: self._decode(id, drafts.get(id, ())) for id in self.rows}
        cuts = [
            self._cut_row(cut, 1 + len(drafts.get(cut.id, ())))
            for cut in step.row_cuts
            if cut.length == len(self.rows[cut.id]) - 1 or cut.id not in drafts
        ]
        now, late = ([], cuts) if step.verifies else (cuts, [])
        return Done(step, StepResult(sampled), tails, tuple(now), tuple(late), at_once)

    def _asked(self, id: SequenceId, count: int) -> Tokens:
        """What a drafter drafts: one token in five is wrong, and no end of the answer."""
        tokens = self.rows[id]
        for _ in range(count):
            token = next_token(tokens, id.choice) + (len(tokens) % 5 == 0)
            if token in self.ends[id]:
                break
            tokens = (*tokens, token)
        return tokens[len(self.rows[id]) :]

    def _decode(self, id: SequenceId, draft: Tokens) -> SampledRow:
        if draft:
            needed = DraftVerification.ALONE if len(self.rows) == 1 else DraftVerification.TOGETHER
            assert needed in self.limits.verify, "rows can't verify drafts so"
            assert len(self.rows) * (1 + len(draft)) <= self.limits.most_places
        tokens: Tokens = ()
        for expected in (*draft, None):
            tokens = (*tokens, next_token((*self.rows[id], *tokens), id.choice))
            if tokens[-1] != expected:
                break
        self.drafted += len(draft)
        self.accepted += len(tokens) - 1
        self.rows[id] = (*self.rows[id], *tokens)
        free = id.request not in self.constrained
        forced = () if free else foreseen(self.rows[id], id.choice)
        drafted = len(draft)
        return SampledRow(tuple(map(SampledToken, tokens)), forced=forced, drafted=drafted)

    def run_chunks(self, step: Step) -> list[Made]:
        """The second half of a step. Decodes before it have been read and kept by then."""
        for restore in step.restores:
            assert restore.prefill not in self.prefills
            tokens = self.prefills[restore.prefill] = self._restored(restore.plan)
            self.restored[restore.prefill] = len(tokens)
        made = self._prefill(step)
        assert len(self.rows) + len(self.prefills) <= self.limits.max_batch_size * 3 // 2
        return made

    def _prefill(self, step: Step) -> list[Made]:
        grid, alone = self.limits.prefill_chunk_tokens, self.limits.chunks.alone
        longest = grid if step.decodes else alone
        budget = grid if step.decodes else self.limits.max_batched_tokens
        assert step.prefill_tokens <= max(budget, longest + longest // 8)
        assert sum(not chunk.joins for chunk in step.chunks) <= 1, "two unfinished chunks"
        made = []
        for chunk in step.chunks:
            before = self.prefills.pop(chunk.prefill, ())
            assert chunk.start == len(before), "a gap in a prefill"
            if not chunk.start:
                self.restored.pop(chunk.prefill, None)
            restored = self.restored.get(chunk.prefill, 0)
            assert chunk.restored == restored, "it is not known what was restored"
            whole = max((p.count for p in chunk.images if p.whole), default=0)
            assert len(chunk.tokens) <= max(whole, longest + longest // 8)
            tokens = (*before, *chunk.tokens)
            made += [self._cut(tokens, cut, len(chunk.tokens)) for cut in chunk.cuts]
            if not chunk.joins:
                marked = any(cut.worth is not None and cut.stop == chunk.stop for cut in chunk.cuts)
                fits = chunk.stop % grid == 0 or marked or self.has_whole_images
                assert fits, "a chunk ends off the grid"
                self.prefills[chunk.prefill] = tokens
            for join in chunk.joins:
                assert tokens == join.context[:-1], "these are not the tokens of the prompt"
                assert join.id not in self.rows
                self.rows[join.id] = join.context
                self.ends[join.id] = join.sampling.stop_ids
                if join.constraint is not None:
                    self.constrained.add(join.id.request)
        return made

    def _cut_row(self, row: RowCut, newest: int = 1) -> Made:
        fed = self.rows[row.id][:-1]  # the newest token is fed by the next decode
        assert row.length == len(fed)
        return self._cut(fed, row.cut, newest)

    def _cut(self, tokens: Tokens, cut: Cut, newest: int) -> Made:
        """Cut from caches into which `newest` tokens went last."""
        if LayerKind.WINDOW in self.layout.kinds:
            in_rings = newest + self.layout.window - 1
            assert len(tokens) - cut.start <= in_rings, "these tokens have left the ring"
        assert 0 <= cut.start <= cut.stop <= len(tokens)
        assert cut.worth is None or cut.stop == len(tokens), "a state of another moment"
        block = tokens[cut.start : cut.stop] if cut.block else None
        return Made(cut, block, tokens if cut.worth is not None else None)

    def _restored(self, plan: RestorePlan) -> Tokens:
        """The tokens that a plan rebuilds, after checking what each kind of layer needs."""
        tokens: Tokens = ()
        for piece in plan.pieces:
            assert piece.start == len(tokens), "a gap between blocks"
            tokens = (*tokens, *self.kept[piece.id][: piece.stop - piece.start])
        assert len(tokens) == plan.stop > 0
        assert (plan.checkpoint is not None) == (LayerKind.CHECKPOINT in self.layout.kinds)
        if plan.checkpoint is not None:
            assert self.kept[plan.checkpoint] == tokens, "a state of another moment"
        return tokens


def nobody_beside() -> MemoryShare:
    """The neighbours of a model that has all memory to itself."""
    share = MemoryAccount(0).share(0)
    share.set_weights(0)
    return share


class Run:
    """A scheduler, its device and what came out, one step ahead like the engine."""

    def __init__(
        self,
        limits: SchedulerLimits,
        layout: CacheLayout | None = None,
        budget: HotBudget = ROOMY,
        memory: int | None = None,
        *,
        drafts: bool = False,
        drafter: bool = False,
        beside_host: bool = False,
    ) -> None:
        """With `memory`, steps are held within so many bytes. With `drafts` all is drafted that can
        be, and with a `drafter` there is one. `beside_host`: the order of engine/pipeline.py for
        such a device."""
        self.cache = (
            PrefixCache(layout, "model", budget)
            if layout
            else PrefixCache(NOTHING_KEPT, "none", budget)
        )
        self.guard = MemoryGuard(memory, PLANNER, nobody_beside()) if memory else None
        self._limit = memory or 0
        speculation = Eager(Method.DRAFT if drafter else None) if drafts else None
        self.scheduler = Scheduler(limits, self.cache, self.guard, speculation)
        self.device = Device(limits, layout or KV)
        self.now = 0.0
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.finishes: dict[tuple[str, int], FinishReason] = {}
        self.admitted: dict[str, Admitted] = {}
        self.chunk_log: list[tuple[str, ...]] = []
        self.computed = 0
        self._seconds = 0.0
        self._beside_host = beside_host
        self._ahead: Done | None = None
        self._reading: tuple[Chunk, ...] = ()

    def step(self, seconds: float = 1.0) -> bool:
        """One turn of the engine, of so many seconds. False when nothing was left to do."""
        self.now += seconds
        self._seconds = seconds
        self.note(self.scheduler.expire(self.now))
        self._watch_memory()
        if self.scheduler.awaits_tokens(self.now):
            self.take_ahead()
        step = self.scheduler.schedule(self.now)
        self.scheduler.check_invariants()
        done = self.device.execute(step) if step else None
        if step:
            self.computed += step.prefill_tokens
            self.admitted |= {a.request_id: a for a in step.admitted}
        self.chunk_log.append(tuple(c.prefill.request for c in step.chunks) if step else ())
        self.take_ahead()
        if self._reading:
            self._chunks_took()
        if done is not None:
            self._go_on(done)
        self.scheduler.check_invariants()
        return step is not None or self._ahead is not None

    def _watch_memory(self) -> None:
        if self.guard is None:
            return
        held = self.cache.index.nbytes
        before, self._limit = self._limit, self.guard.limit
        limit = max(before, self._limit)
        assert self.device.live + held <= limit, "more is held than there may be"
        if self.scheduler.is_steady() and before == self._limit:  # steps are fast: no look is due
            return
        self.guard.begin(Ledger(self.guard.limit, live=self.device.live, blocks=held))
        self.note(self.scheduler.relieve(self.now))
        self.scheduler.check_invariants()

    def lose_everything(self) -> None:
        """The device forgets all but what is kept: what the engine does when a step has failed."""
        self._ahead, self._reading = None, ()
        self.scheduler.queues.restart()
        self.device.rows, self.device.prefills = {}, {}

    def finish(self, limit: int = 100_000) -> None:
        for _ in range(limit):
            if not self.step() and not self.scheduler.has_work:
                self.check_kept()
                return
        raise AssertionError("the scheduler does not come to an end")

    def check_kept(self) -> None:
        """What the index knows is what is kept, and nothing is held when nothing runs."""
        index = self.cache.index
        index.check_invariants()
        assert len(self.device.kept) == len(index) + index.checkpoint_count
        if not self.scheduler.has_work:
            for block in index.blocks():
                assert not block.leases, "a lease was forgotten"
                assert not any(c.leases for c in block.checkpoints.values())

    def note(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            key = (event.request_id, event.index)
            assert key not in self.finishes, "a token after the end"
            if event.token is not None:
                self.outputs.setdefault(key, []).append(event.token)
            if event.finish:
                self.finishes[key] = event.finish

    def take_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._take(ahead)

    def _go_on(self, done: Done) -> None:
        self._keep(done.tails)
        chunks = done.step.chunks
        if chunks and self._beside_host:
            self._run_chunks(done.step)
        if chunks or done.at_once:
            self._take(done)
        else:
            self._ahead = done
        if chunks and not self._beside_host:
            self._run_chunks(done.step)
            self._chunks_took()

    def _take(self, done: Done) -> None:
        self._keep(done.made)
        self.note(self.scheduler.update(done.result))
        self._keep(done.late)

    def _run_chunks(self, step: Step) -> None:
        self._keep(self.device.run_chunks(step))
        self._reading = step.chunks
        self.note(self.scheduler.update(StepResult(chunks_launched=True)))

    def _chunks_took(self) -> None:
        self.scheduler.note_chunk_time(self._reading, self._seconds)
        self._reading = ()

    def _keep(self, cuts: Sequence[Made]) -> None:
        for made in cuts:
            ids = self.scheduler.keep(made.cut, *made.sizes(self.device.layout))
            for id, tokens in zip(ids, (made.block, made.state), strict=True):
                if id is not None and tokens is not None:
                    assert id not in self.device.kept
                    self.device.kept[id] = tokens
        for id in self.cache.eviction.take_evicted():
            del self.device.kept[id]
