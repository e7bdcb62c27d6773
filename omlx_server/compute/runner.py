"""Executes steps on one model: the device side of the engine. Owned by the mlx thread.

    execute(step)      drops rows and launches the decode, for which it does not wait on a GPU
    Launched.tokens()  waits for the decode of that step and brings its tokens to the host
    Launched.wait()    runs the step's restores and chunks, and waits for the chunks

The chunks come after the tokens: on the CPU backend a launch takes as long as the work, and the
tokens of running streams must not wait for somebody else's prompt.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import Decoded, LiveBatch, Prefilled
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Row
from omlx_server.compute.drafting.base import Drafted
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.spans import LostTokens, Runs
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload, size_of
from omlx_server.compute.prefill import Prefiller
from omlx_server.compute.verify import Verifying
from omlx_server.core.blocks.block import PayloadId, Size
from omlx_server.core.crash import Crash, guarded
from omlx_server.core.request import RequestId, Restored, SamplingParams
from omlx_server.core.step import (
    Chunk,
    ChunkFailure,
    Cut,
    Join,
    Restore,
    RowCut,
    SequenceId,
    Step,
    StepResult,
)
from omlx_server.core.work import Work

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class CutPayload:
    """The payloads that a `cut` gave, launched and perhaps not computed yet; None for a block or
    checkpoint that it did not ask for."""

    cut: Cut
    block: Payload | None
    checkpoint: Payload | None

    @property
    def sizes(self) -> tuple[Size | None, Size | None]:
        """The sizes of the block and of the checkpoint."""
        block = size_of(self.block) if self.block else None
        return block, size_of(self.checkpoint) if self.checkpoint else None


@dataclass(slots=True, eq=False)
class ChunksDone:
    """What has become of a step's chunks. `lost` chunks did not run, because their restore raised,
    or what they refer to was lost with another prompt; `starved` chunks found no memory. `restored`
    has the times of restores."""

    failures: list[ChunkFailure] = field(default_factory=list)
    payloads: list[CutPayload] = field(default_factory=list)
    lost: list[Chunk] = field(default_factory=list)
    starved: list[Chunk] = field(default_factory=list)
    restored: list[Restored] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """A step under way on the device. `ids` are the rows that decode. `payloads` were cut from
    rows, live or just dropped; `groups` are the step's chunks as they will run. With `at_once`,
    nothing else should be launched before the step's tokens are taken. The decode was `begun` at
    this time.perf_counter()."""

    ids: tuple[SequenceId, ...]
    sampled: Decoded | None
    payloads: tuple[CutPayload, ...]
    groups: tuple[tuple[Chunk, ...], ...]
    at_once: bool
    wait: Callable[[], ChunksDone]
    """Runs the restores and chunks, and waits for the chunks. To be called once per step."""
    cut: Callable[[], list[CutPayload]]
    """Cuts, once the step's tokens are taken, the rows that could not be cut before."""
    begun: float
    drafted: Drafted | None = None
    """What the drafter drafted for the decode, and in what time."""

    @property
    def places(self) -> int:
        """How many tokens the decode computes, padding counted."""
        width = self.sampled.width if isinstance(self.sampled, Verifying) else 1
        return len(self.ids) * width

    @property
    def is_verifying(self) -> bool:
        """Whether the decode verifies drafts."""
        return isinstance(self.sampled, Verifying)

    @property
    def prefilling(self) -> bool:
        return bool(self.groups)

    @property
    def prefill_tokens(self) -> int:
        return sum(len(chunk.tokens) for group in self.groups for chunk in group)

    def tokens(self) -> StepResult:
        """Wait for the decode and bring its tokens to the host."""
        rows = self.sampled.to_host() if self.sampled else []
        return StepResult(dict(zip(self.ids, rows, strict=True)))


class ModelRunner:
    """One loaded model, its live batch and its unfinished prefills.

    `codec` is None for a model whose caches can't be cut into blocks. `fetch` returns the payload
    with an id, and must know every payload that a step restores.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        codec: BlockCodec | None = None,
        fetch: Callable[[PayloadId], Payload] | None = None,
    ) -> None:
        self.loaded = loaded
        self.why_alone = cache_ops.why_alone(loaded.model)
        self.batchable = not self.why_alone
        self.codec = codec
        self._fetch = fetch
        self._prefiller = Prefiller(loaded.model, batchable=self.batchable)
        self.grouping = self._prefiller.grouping
        self.runs = codec.runs if codec else Runs()
        block_size = codec.layout.block_size if codec else 1
        self._batch = LiveBatch(loaded.model, loaded.dims.vocab, self.runs, block_size)

    @property
    def idle(self) -> bool:
        return not self._batch.rows and not self._prefiller.count

    @property
    def live_bytes(self) -> int:
        """Bytes that the live rows and the unfinished prefills hold, and all that blocks refer
        to."""
        return self._batch.nbytes + self._prefiller.nbytes + self.runs.idle_bytes

    @property
    def lost(self) -> list[SequenceId]:
        """The live rows and unfinished prefills that refer to tokens that are lost, since another
        prompt, which had them, has failed."""
        ids = self._batch.ids
        rows = [ids[index] for index in sorted(cache_ops.lost_rows(self._batch.caches))]
        return [*rows, *self._prefiller.lost]

    def execute(self, step: Step) -> Launched:
        """Cut the tails, drop rows, and launch the decode and the row cuts of a step. With drafts
        rows are cut in `Launched.cut`. Restores and chunks run in `Launched.wait`.

        A chunk that raises there is reported as a failure and costs only its own rows. An exception
        of the decode is raised: it can't be laid on one row, and the caches are unusable after it.
        """
        payloads = self._cut_rows(step.tails)
        self._batch.drop(step.drops)
        self._prefiller.drop(step.drops)
        if step.drops:
            self.runs.tidy(wholly=self.idle)
        ids = self._batch.ids
        if set(ids) != set(step.decodes):
            raise RuntimeError("the live batch is not what the scheduler decodes")
        # On the CPU backend the next launch takes as long as its work: too long to hold back the
        # first token of an answer. A tail must be kept before the conversation's next turn comes.
        first = self._batch.has_newcomers and device.is_cpu()
        soon = first or self._batch.constrained or step.verifies
        at_once = bool(step.chunks or step.tails or soon)
        begun = time.perf_counter()
        sampled = self._batch.decode(step.drafts, step.asks) if step.decodes else None
        late = step.row_cuts if step.verifies else ()
        if not late:
            payloads += self._cut_rows(step.row_cuts)
        groups = self.grouping.group(step.chunks)
        return Launched(
            ids,
            sampled,
            tuple(payloads),
            tuple(groups),
            at_once,
            wait=partial(self._run_chunks, step, groups),
            cut=partial(self._cut_rows, late),
            begun=begun,
            drafted=self._batch.drafted if step.asks else None,
        )

    def reset(self) -> None:
        """Forget every row and prefill, whose steps may have failed: what blocks refer to in their
        caches is lost. Gives freed memory back to the system."""
        self.runs.lose()
        self._batch.clear()
        self._prefiller.clear()
        device.drain_pool()

    def probe(self, join: Join) -> None:
        """Prefill one context and decode a token after it, in caches of its own. Waits for both.
        Raises RuntimeError when the prefill fails, and whatever the decode raises."""
        scratch = ModelRunner(self.loaded)
        chunk = Chunk(join.id, 0, join.context[:-1], (join,))
        for step in (Step(chunks=(chunk,)), Step(decodes=(join.id,))):
            launched = scratch.execute(step)
            launched.tokens()
            failures = launched.wait().failures
            if failures:
                raise RuntimeError(failures[0].message)

    def warming(self) -> Work[None]:
        """Run a prefill, a decode and a drop of a row, a step in each slice, so that kernels are
        compiled before the first request."""
        scratch = ModelRunner(self.loaded)
        greedy = SamplingParams(max_tokens=4, temperature=0, top_logprobs=2)
        drawn = SamplingParams(
            max_tokens=4,
            top_p=0.9,
            top_k=5,
            min_p=0.01,
            presence_penalty=0.1,
            repetition_penalty=1.1,
        )
        joins = [
            Join(SequenceId(RequestId(f"warm-up-{i}"), 0), (1,) * (9 + 2 * i), 9 + 2 * i, params)
            for i, params in enumerate((greedy, drawn) if self.batchable else (drawn,))
        ]
        chunks = tuple(Chunk(j.id, 0, j.context[:-1], (j,)) for j in joins)
        ids = tuple(join.id for join in joins)
        drafted = Step(decodes=ids, asks=dict.fromkeys(ids, 2))  # without a drafter as any decode
        steps = (
            Step(chunks=chunks),
            Step(decodes=ids),
            drafted,
            Step(drops=ids[1:], decodes=ids[:1]),
        )
        for step in steps:
            launched = scratch.execute(step)
            launched.tokens()
            launched.wait()
            yield

    # -- inside --------------------------------------------------------------------------

    def _run_chunks(self, step: Step, groups: Sequence[tuple[Chunk, ...]]) -> ChunksDone:
        """Run a step's restores, chunks and their cuts, and let the rows whose prompts are complete
        join the live batch. Waits for the chunks."""
        done, arrivals = ChunksDone(), list[Prefilled]()
        self._restore(step, groups, done)
        gone = (*done.lost, *done.starved)
        chunks = [chunk for chunk in step.chunks if chunk not in gone]
        for group in self.grouping.group(chunks) if gone else groups:
            arrivals += self._prefill(group, done)
        self._batch.join(arrivals)
        if any(chunk.tokens for chunk in chunks):  # a mere restore goes on beside the next launch
            mx.synchronize()
        return done

    def _restore(self, step: Step, groups: Sequence[tuple[Chunk, ...]], done: ChunksDone) -> None:
        """Rebuild the caches of prefills, without waiting. For prefills that run in a group this is
        a trial only: the group rebuilds them. Chunks whose restore raises are noted in `done`."""
        merged = {chunk.prefill for group in groups if len(group) > 1 for chunk in group}
        for restore in step.restores:
            alone = restore.prefill not in merged
            rebuild = self._rebuilt if alone else self._tried
            caches = guarded(partial(rebuild, restore, done))
            if isinstance(caches, Crash):
                chunks = [chunk for chunk in step.chunks if chunk.prefill == restore.prefill]
                if device.is_out_of_memory(caches.error):
                    done.starved += chunks
                else:
                    _log.error("a stored prefix is unreadable", exc_info=caches.error)
                    done.lost += chunks
            elif alone:
                self._prefiller.restore(restore.prefill, caches)
            else:
                later = partial(self._rebuilt, restore, done, launch=False)
                self._prefiller.restore_later(restore.prefill, later)

    def _rebuilt(self, restore: Restore, done: ChunksDone, *, launch: bool = True) -> Caches:
        begun = time.monotonic()
        caches = self._join(restore, launch=launch, rebase=True)
        done.restored.append(Restored(restore.prefill.request, begun, time.monotonic()))
        return caches

    def _tried(self, restore: Restore, done: ChunksDone) -> Caches:
        """Caches that nobody will use: whether they can be made is the question."""
        return self._join(restore, launch=False, rebase=False)

    def _join(self, restore: Restore, *, launch: bool, rebase: bool) -> Caches:
        assert self.codec is not None and self._fetch is not None
        plan = restore.plan
        blocks = [self._fetch(piece.id) for piece in plan.pieces]
        checkpoint = self._fetch(plan.checkpoint) if plan.checkpoint is not None else None
        return self.codec.join(blocks, checkpoint, plan.stop, launch=launch, rebase=rebase)

    def _prefill(self, group: Sequence[Chunk], done: ChunksDone) -> list[Prefilled]:
        """Run a group; if it raises, run its members one by one to find the one that fails. Returns
        the rows of prompts that are complete."""
        prefilled = guarded(self._prefiller.run, group)
        if not isinstance(prefilled, Crash):
            done.payloads += self._cut_chunks(group, prefilled)
            return [prefilled] if prefilled else []
        if device.is_out_of_memory(prefilled.error):
            self._prefiller.fail([chunk.prefill for chunk in group], together=False)
            done.starved += group
        elif len(group) > 1:
            self._prefiller.fail([chunk.prefill for chunk in group], together=True)
            return [rows for chunk in group for rows in self._prefill((chunk,), done)]
        elif isinstance(prefilled.error, LostTokens):
            self._prefiller.fail([group[0].prefill], together=False)
            done.lost += group
        else:
            _log.error("prefill of %s failed", group[0].prefill.request, exc_info=prefilled.error)
            self._prefiller.fail([group[0].prefill], together=False)
            message = f"{prefilled.summary} while reading the prompt"
            done.failures.append(ChunkFailure(group[0], message))
        return []

    def _cut_chunks(self, group: Sequence[Chunk], prefilled: Prefilled | None) -> list[CutPayload]:
        """Cut the blocks and checkpoints that the chunks of a group ask for."""
        made = []
        for index, chunk in enumerate(group):
            caches = prefilled.caches if prefilled else self._prefiller.unfinished(chunk.prefill)
            if caches is not None:
                row = Row(index, chunk.stop)
                made += [self._cut(caches, row, cut) for cut in chunk.cuts]
        return made

    def _cut_rows(self, cuts: Sequence[RowCut]) -> list[CutPayload]:
        """Cut blocks and checkpoints of live rows. A row is passed over that failed to join, or has
        not come that far, because its draft was wrong."""
        made = []
        # Rows that are not behind first: when others catch up, a ring drops a token that a block of
        # these has.
        for wanted in sorted(cuts, key=lambda cut: self._batch.is_behind(cut.id)):
            index = self._batch.row_of(wanted.id)
            if index is not None and self._batch.tokens(index) == wanted.length:
                if self._batch.is_behind(wanted.id):
                    self._batch.catch_up()
                if self._batch.is_behind(wanted.id):
                    continue  # another row refers to what is lost
                row = Row(index, wanted.length)
                made.append(self._cut(self._batch.caches, row, wanted.cut))
        return made

    def _cut(self, caches: Caches, row: Row, cut: Cut) -> CutPayload:
        assert self.codec is not None
        block = self.codec.cut_block(caches, row, cut.start, cut.stop) if cut.block else None
        checkpoint = self.codec.cut_checkpoint(caches, row) if cut.worth is not None else None
        for payload in (block, checkpoint):
            if payload is not None:
                mx.async_eval(*payload.buffers)
        return CutPayload(cut, block, checkpoint)
