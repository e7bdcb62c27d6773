"""What real instances run on in a simulated world: a device that knows one right answer to each
prompt, and a disk that answers when the world says so. Payloads are real ones; their arrays are the
tokens.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import mlx.core as mx

from omlx_server.compute.adapters.adapters import AdapterStore
from omlx_server.compute.kv.spans import Runs
from omlx_server.compute.launched import ChunksLaunched, CutPayload, Launched
from omlx_server.compute.payload import Payload
from omlx_server.core.blocks.block import CacheLayout, PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import PackedArrays, Recalled, Record
from omlx_server.core.crash import Crash
from omlx_server.core.images import ImageSpan
from omlx_server.core.memory.estimate import STRUCTURAL, Planner
from omlx_server.core.memory.kv import Decode, Keeps, LayerKv, ModelShape, PrefillShape
from omlx_server.core.ranks import ALONE, Ranks
from omlx_server.core.request import SampledRow
from omlx_server.core.scheduler.limits import Grouping, SchedulerLimits
from omlx_server.core.speculation.methods import DraftVerification
from omlx_server.core.step import Chunk, ChunkFailure, Join, RowCut, SequenceId, Step, StepResult
from omlx_server.store.block_file import file_bytes
from omlx_server.store.mediums.medium import Name
from omlx_server.store.worker import ContainsJob, DeleteJob, Done, Job, ReadJob, WriteJob
from tests.core.simulator import VOCAB, Device, Made

TOKEN_BYTES = 8


class PretendPlanner(Planner):
    """Steps take what is easily said; caches are those of any planner."""

    def __init__(self) -> None:
        layers = (LayerKv(Keeps.GROWING, TOKEN_BYTES),)
        super().__init__(ModelShape(1, 1, 1, 1, 1, VOCAB, 1, layers=layers), STRUCTURAL)

    def prefill(self, prefill: PrefillShape) -> int:
        return 10 * prefill.rows * prefill.tokens

    def decode(self, decode: Decode) -> int:
        return 100 * decode.rows


class Kept:
    """The tokens of what the hot tier keeps."""

    def __init__(self, fetch: Callable[[PayloadId], Payload]) -> None:
        self._fetch = fetch

    def __getitem__(self, id: PayloadId) -> tuple[int, ...]:
        tokens: Any = self._fetch(id).buffers[0].tolist()
        return tuple(tokens[0])


def payload_of(tokens: Sequence[int]) -> Payload:
    return Payload((mx.array([tokens], dtype=mx.int64),), (((0, 0),),))


@dataclass(frozen=True)
class _Sampled:
    rows: Sequence[SampledRow]
    fails: Exception | None = None

    def to_host(self) -> Sequence[SampledRow]:
        if self.fails is not None:
            raise self.fails
        return self.rows


@dataclass
class PretendRunner:
    """Takes the place of a `ModelRunner`. Of `faults` the first one strikes the next step that it
    can: `crash`, `memory` and `late` (it raises when its tokens are read) any step that decodes;
    `fails`, `lost` and `starves` one with chunks. Requests of `guilty` raise when they are tried
    alone. `worked` counts steps that decode or read, `seconds` what they took."""

    limits: SchedulerLimits
    layout: CacheLayout
    fetch: Callable[[PayloadId], Payload]
    batchable: bool = True
    grouping: Grouping = field(default_factory=Grouping)
    faults: deque[str] = field(default_factory=deque)
    guilty: set[str] = field(default_factory=set)
    worked: int = 0
    seconds: float = 0.0
    cut_late: Sequence[Made] = ()
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        self.loaded = SimpleNamespace(
            weight_bytes=0,
            verifies=DraftVerification.ALWAYS,
            vision=None,
            experts=None,
            adapters=AdapterStore(),
        )
        self.runs = Runs()
        self.lost = list[SequenceId]()
        self.reset()

    def limit_dispatches(self, limit: object) -> None:
        """All at once here."""

    def note_chunk_time(self, chunks: ChunksLaunched, seconds: float) -> None:
        """Nothing is predicted."""

    def reset(self) -> None:
        self.device = Device(self.limits, self.layout)
        self.device.kept = Kept(self.fetch)  # type: ignore[assignment]

    @property
    def idle(self) -> bool:
        return not (self.device.rows or self.device.prefills)

    @property
    def live_bytes(self) -> int:
        device = self.device
        longest = max((len(tokens) for tokens in device.rows.values()), default=0)
        tokens = len(device.rows) * longest + sum(map(len, device.prefills.values()))
        return tokens * TOKEN_BYTES

    def decode(self, step: Step) -> Launched:
        self.worked += bool(step.decodes or step.chunks)
        self.seconds += 0.01 * bool(step.decodes) + 0.002 * step.prefill_tokens
        if step.decodes and self._strikes("crash"):
            raise RuntimeError("planted")
        if step.decodes and self._strikes("memory"):
            raise MemoryError
        late = RuntimeError("planted") if step.decodes and self._strikes("late") else None
        done = self.device.execute(step)
        rows = list(done.result.rows.values())
        self.cut_late = done.late
        return Launched(
            step,
            tuple(done.result.rows),
            _payloads(done.tails),
            at_once=bool(step.chunks or done.at_once),
            begun=0.0,
            decoded=_Sampled(rows, late) if rows else None,  # type: ignore[arg-type]
            payloads=_payloads(done.made),
        )

    def sample(self, launched: Launched) -> None:
        """All is sampled by `decode`."""

    def read(self, launched: Launched) -> StepResult:
        rows = launched.decoded.to_host() if launched.decoded else []
        return StepResult(dict(zip(launched.ids, rows, strict=True)))

    def cut(self, cuts: Sequence[RowCut]) -> Sequence[CutPayload]:
        late, self.cut_late = self.cut_late, ()
        return _payloads(late)

    def failure_of(self, join: Join, images: tuple[ImageSpan, ...] = ()) -> Crash | None:
        return Crash(RuntimeError("planted")) if join.id.request in self.guilty else None

    def is_broken(self) -> bool:
        return False

    def _strikes(self, *kinds: str) -> str:
        """Whether one of these faults is the next."""
        return self.faults.popleft() if self.faults and self.faults[0] in kinds else ""

    def prefill(self, step: Step) -> ChunksLaunched:
        device, made = self.device, list[Made]()
        struck: dict[str, list[Chunk]] = {"fails": [], "lost": [], "starves": []}
        restored = {restore.prefill for restore in step.restores}
        for chunk in step.chunks:
            kinds = ("fails", "starves", "lost") if chunk.prefill in restored else ("fails",)
            kind = self._strikes(*kinds, "starves")
            if kind:
                device.prefills.pop(chunk.prefill, None)
                struck[kind].append(chunk)
        gone = {chunk.prefill for chunks in struck.values() for chunk in chunks}
        for restore in step.restores:
            if restore.prefill not in gone:
                device.prefills[restore.prefill] = device._restored(restore.plan)
        for chunk in step.chunks:
            if chunk.prefill not in gone:
                made += _read(device, chunk)
        return ChunksLaunched(
            step.chunks,
            tuple(self.grouping.group(step.chunks)),
            [ChunkFailure(chunk, "planted") for chunk in struck["fails"]],
            list(_payloads(made)),
            lost=struck["lost"],
            starved=struck["starves"],
        )


def _read(device: Device, chunk: Chunk) -> list[Made]:
    """A chunk of any size: where memory is short, they end off the grid."""
    before = device.prefills.pop(chunk.prefill, ())
    assert chunk.start == len(before), "a gap in a prefill"
    tokens = (*before, *chunk.tokens)
    made = [device._cut(tokens, cut, len(chunk.tokens)) for cut in chunk.cuts]
    if not chunk.joins:
        device.prefills[chunk.prefill] = tokens
    for join in chunk.joins:
        assert tokens == join.context[:-1], "these are not the tokens of the prompt"
        assert join.id not in device.rows
        device.rows[join.id] = join.context
        device.ends[join.id] = join.sampling.stop_ids
        if join.constraint is not None:
            device.constrained.add(join.id.request)
    return made


def _payloads(made: Sequence[Made]) -> tuple[CutPayload, ...]:
    return tuple(
        CutPayload(
            one.cut,
            payload_of(one.block) if one.block is not None else None,
            payload_of(one.state) if one.state is not None else None,
        )
        for one in made
    )


@dataclass(frozen=True)
class Fate:
    """What becomes of a job of the disk: how long it takes, and why it fails if it does. `never`:
    no answer comes."""

    seconds: float = 0.0
    reason: str = ""
    never: bool = False


class PretendWorker:
    """Takes the place of the cold-io thread. Jobs end when their time has come, in any order;
    `wake` is called then."""

    def __init__(self, fates: Sequence[Fate], clock: Callable[[], float]) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.files: dict[BlockKey, tuple[Record, PackedArrays]] = {}
        self.hung = 0
        self._clock = clock
        self._fates = cycle(fates)
        self._jobs: list[tuple[float, int, Job, str]] = []
        self._results: deque[Done | Recalled] = deque()
        self._count = 0

    def submit(self, job: Job) -> None:
        fate = next(self._fates)
        if fate.never and isinstance(job, ReadJob | ContainsJob):
            self.hung += 1
            return
        reason = fate.reason if isinstance(job, ReadJob | ContainsJob | WriteJob) else ""
        self._count += 1
        self._jobs.append((self._clock() + fate.seconds, self._count, job, reason))

    def touch(self, names: Sequence[Name]) -> None:
        """Nothing that is pretended has a date."""

    def clear(self, namespace: str) -> None:
        """Files stay, as a directory may that can't be removed."""

    @property
    def next_end(self) -> float | None:
        """When the next job ends."""
        return min(self._jobs)[0] if self._jobs else None

    @property
    def has_read(self) -> bool:
        """Whether there is something to take that somebody may wait for."""
        return any(
            isinstance(result, Recalled) or isinstance(result.job, ContainsJob)
            for result in self._results
        )

    def work(self) -> None:
        """End all jobs whose time has come."""
        now = self._clock()
        due = sorted(job for job in self._jobs if job[0] <= now)
        self._jobs = [job for job in self._jobs if job[0] > now]
        for _, _, job, reason in due:
            self._results.append(self._done(job, reason))
            self.wake()

    def take(self) -> Iterator[Done | Recalled]:
        while self._results:
            yield self._results.popleft()

    def _done(self, job: Job, reason: str) -> Done | Recalled:
        match job:
            case WriteJob(record, packed) if not reason:
                self.files[record.key] = record, packed
                return Done(job, nbytes=file_bytes(record, packed))
            case ReadJob(record) if reason or record.key not in self.files:
                return Recalled(record, reason=reason or "gone")
            case ReadJob(record):
                stored, packed = self.files[record.key]
                return Recalled(stored, packed, "", file_bytes(stored, packed), 0.001)
            case ContainsJob(records=records) if not reason:
                return Done(job, records=tuple(r for r in records if r.key in self.files))
            case DeleteJob(name):
                self.files.pop(name.block_key, None)
        return Done(job, reason)
