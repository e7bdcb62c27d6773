"""Executes steps on one model: the device side of the engine. Owned by the mlx thread.

    decode(step)      drops rows and launches the decode
    sample(launched)  samples, where that must wait for the tokens of the step before
    read(launched)    waits for the decode and brings its tokens to the host
    cut(row_cuts)     cuts rows of the live batch
    prefill(step)     launches the step's restores and chunks

The engine chooses the order (engine/pipeline.py).
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from omlx_server import clock
from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.forward_parts import ForwardParts
from omlx_server.compute.hardware import device, device_policy
from omlx_server.compute.kv.spans import LostTokens, Runs
from omlx_server.compute.launched import ChunksLaunched, CutPayload, Launched
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.prefill import Prefilled, Prefiller
from omlx_server.compute.verify import VerifyingDecode
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.crash import Crash, guarded
from omlx_server.core.device_errors import OUT_OF_MEMORY, fault_of
from omlx_server.core.dispatch_limit import DispatchLimit
from omlx_server.core.images import ImageSpan
from omlx_server.core.request import NOT_FINITE, RequestId, Restored, SamplingParams
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
from omlx_server.errors import LoadFailed

_log = logging.getLogger(__name__)

_TRIAL_TOKENS = 9


class ModelRunner:
    """One loaded model, its live batch and its unfinished prefills. `codec` is None if its
    caches can't be cut. `fetch` must know every payload that a step restores."""

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
        self.parts = ForwardParts(loaded.model)
        self._prefiller = Prefiller(
            loaded.model,
            batchable=self.batchable,
            vision=loaded.vision,
            adapters=loaded.adapters,
            parts=self.parts,
        )
        self._failed_prefills = set[SequenceId]()  # once, alone
        self.grouping = self._prefiller.grouping
        self.runs = codec.runs if codec else Runs()
        block_size = codec.layout.block_size if codec else 1
        vocab, adapters = loaded.dims.vocab, loaded.adapters
        self.ranks = loaded.ranks
        self._batch = LiveBatch(
            loaded.model, vocab, self.runs, block_size, adapters, self.ranks, self.parts
        )

    def limit_dispatches(self, limit: DispatchLimit | None) -> None:
        self.parts.limit = limit
        if not self.ranks.are_several:  # the others group by the plain rules
            self.grouping = replace(self.grouping, dispatch=limit)

    def note_chunk_time(self, chunks: ChunksLaunched, seconds: float) -> None:
        self.parts.note_chunks(chunks.groups, seconds)

    @property
    def idle(self) -> bool:
        return not self._batch.rows and not self._prefiller.count

    @property
    def live_bytes(self) -> int:
        """Bytes of live rows, unfinished prefills and all that blocks refer to."""
        return self._batch.nbytes + self._prefiller.nbytes + self.runs.idle_bytes

    @property
    def lost(self) -> list[SequenceId]:
        ids = self._batch.ids
        rows = [ids[index] for index in sorted(cache_ops.lost_rows(self._batch.caches))]
        return [*rows, *self._prefiller.lost]

    def decode(self, step: Step) -> Launched:
        """Cut tails, drop rows, launch the decode and row cuts. If it raises, caches are void."""
        tails = self.cut(step.tails)
        self._batch.drop(step.drops)
        self._prefiller.drop(step.drops)
        self._failed_prefills.difference_update(step.drops)
        if step.drops:
            self.runs.tidy(wholly=self.idle)
        ids = self._batch.ids
        if set(ids) != set(step.decodes):
            raise RuntimeError("the live batch is not what the scheduler decodes")
        beside_host = device_policy.current().beside_host
        samples_later = beside_host and self._batch.is_constrained and not step.verifies
        at_once = step.verifies or self._must_read_at_once(step, beside_host=beside_host)
        launched = Launched(step, ids, tails, at_once, time.perf_counter())
        feeds = self._batch.draft_feeds(step.drafts, step.asks) if step.verifies else []
        if self.ranks.are_several:
            pairs = zip(ids, feeds, strict=False)
            self.ranks.decode(step, {id: feed.draft for id, feed in pairs if feed.draft})
        launched.drafted = self._batch.drafted if step.asks else None
        if feeds:
            launched.decoded = self._batch.verify(feeds)
        elif step.decodes:
            launched.logits = self._batch.feed_newest()
            if samples_later:
                device.launch(launched.logits)
            else:
                self.sample(launched)
        return launched

    def sample(self, launched: Launched) -> None:
        """Sample, unless that is done, and cut rows."""
        logits, launched.logits = launched.logits, None
        if logits is not None:
            launched.decoded = self._batch.sample(logits)
            if launched.step.row_cuts and not launched.step.verifies:
                launched.payloads = self.cut(launched.step.row_cuts)

    def read(self, launched: Launched) -> StepResult:
        """Wait for the tokens, and take back wrong drafts. Call it once."""
        if launched.logits is not None:
            self.sample(launched)
        rows = self._batch.read(launched.decoded) if launched.decoded is not None else []
        return StepResult(dict(zip(launched.ids, rows, strict=True)))

    def accept(
        self, verifying: VerifyingDecode, right: Sequence[int], newest: Sequence[int]
    ) -> None:
        """Do on a follower what `read` does on rank 0."""
        self._batch.accept(verifying, right, newest)

    def _must_read_at_once(self, step: Step, *, beside_host: bool) -> bool:
        """Return whether the step's tokens must be read before more is planned."""
        if beside_host:
            return step.prefill_tokens > 0
        # A launch takes as long as its work here, so planning ahead would only delay tokens.
        return bool(step.chunks) or self._batch.has_newcomers or self._batch.is_constrained

    def reset(self) -> None:
        self.ranks.reset()
        self.runs.lose()
        self._batch.clear()
        self._prefiller.clear()
        device.drain_pool()

    def failure_of(self, join: Join, images: tuple[ImageSpan, ...] = ()) -> Crash | None:
        """Return why a prompt fails alone. Waits. Raises what the device raises."""
        crash = guarded(self.probe, join, images)
        if crash is not None and fault_of(crash.error) is not None:
            raise crash.error
        return crash

    def is_broken(self) -> bool:
        """Return whether any prompt fails. Waits. Raises what the device raises."""
        return self.failure_of(_trial_join()) is not None

    def probe(self, join: Join, images: tuple[ImageSpan, ...] = ()) -> None:
        """Prefill one context and decode a token, apart. Waits. Raises RuntimeError when the
        prefill fails, and whatever the decode raises."""
        scratch = ModelRunner(self.loaded)
        scratch.parts.limit = self.parts.limit
        context = join.context[:-1]
        size = len(context) if images else device_policy.current().chunk
        starts = range(0, max(1, len(context)), max(1, size))
        for start in starts:
            joins = (join,) if start == starts[-1] else ()
            tokens = context[start : start + size]
            chunk = Chunk(join.id, start, tokens, joins, images=images, adapter=join.adapter)
            scratch.try_step(Step(chunks=(chunk,)))
        scratch.try_step(Step(decodes=(join.id,)))

    def try_step(self, step: Step) -> StepResult:
        """Run a step and wait. Raises RuntimeError if a chunk fails or is lost."""
        result = self.read(self.decode(step))
        chunks = self.prefill(step)
        chunks.wait()
        if chunks.starved:
            raise MemoryError("there is no memory to read a prompt alone")
        if chunks.failures or chunks.lost:
            raise RuntimeError(chunks.failures[0].message if chunks.failures else "a chunk is lost")
        return result

    def warming(self) -> Work[None]:
        """Run a few steps, one per slice, to compile kernels. Raises LoadFailed for logits that are
        not finite."""
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
        steps = (
            Step(chunks=chunks),
            Step(decodes=ids),
            Step(decodes=ids, asks=dict.fromkeys(ids, 2)),  # without a drafter as any decode
            Step(drops=ids[1:], decodes=ids[:1]),
        )
        for step in steps:
            _check_finite(scratch.try_step(step))
            yield
        self.ranks.reset()

    def prefill(self, step: Step) -> ChunksLaunched:
        """Launch restores, chunks and cuts, and add complete rows to the live batch. A chunk that
        raises fails its own rows only."""
        groups = tuple(self.grouping.group(step.chunks))
        chunks, arrivals = ChunksLaunched(step.chunks, groups), list[Prefilled]()
        self._restore_prefixes(step, chunks)
        unusable = (*chunks.lost, *chunks.starved)
        usable = [chunk for chunk in step.chunks if chunk not in unusable]
        if usable:
            self.ranks.prefill(step, usable)
        for group in self.grouping.group(usable) if unusable else groups:
            arrivals += self._prefill_group(group, chunks)
        if chunks.last is not None:
            device.launch(chunks.last)
        self._batch.join(arrivals)
        return chunks

    def _restore_prefixes(self, step: Step, launched: ChunksLaunched) -> None:
        """Rebuild caches of chunks that run alone. Those of groups are tried, and rebuilt later."""
        several = (group for group in launched.groups if len(group) > 1)
        grouped = {chunk.prefill for group in several for chunk in group}
        for restore in step.restores:
            alone = restore.prefill not in grouped
            rebuild = partial(self._rebuild_caches, restore, launched)
            trial = partial(self._join_blocks, restore, launch=False, rebase=False)
            caches = guarded(rebuild if alone else trial)
            if isinstance(caches, Crash):
                chunks = [chunk for chunk in step.chunks if chunk.prefill == restore.prefill]
                fault = fault_of(caches.error)
                if fault in OUT_OF_MEMORY:
                    launched.starved += chunks
                    launched.fault = fault
                elif fault is not None:
                    raise caches.error
                else:
                    _log.error("a stored prefix is unreadable", exc_info=caches.error)
                    launched.lost += chunks
            elif alone:
                self._prefiller.restore(restore.prefill, caches)
            else:
                self._prefiller.restore_later(restore.prefill, partial(rebuild, launch=False))

    def _rebuild_caches(
        self, restore: Restore, launched: ChunksLaunched, *, launch: bool = True
    ) -> Caches:
        begun = clock.now()
        caches = self._join_blocks(restore, launch=launch, rebase=True)
        launched.restored.append(Restored(restore.prefill.request, begun, clock.now()))
        return caches

    def _join_blocks(self, restore: Restore, *, launch: bool, rebase: bool) -> Caches:
        assert self.codec is not None and self._fetch is not None
        plan = restore.plan
        blocks = [self._fetch(piece.id) for piece in plan.pieces]
        checkpoint = self._fetch(plan.checkpoint) if plan.checkpoint is not None else None
        return self.codec.join(blocks, checkpoint, plan.stop, launch=launch, rebase=rebase)

    def _prefill_group(self, group: Sequence[Chunk], launched: ChunksLaunched) -> list[Prefilled]:
        """If a group raises, run its members one by one. Raises RuntimeError if a rank is gone."""
        prefilled = guarded(self._prefiller.run, group)
        if not isinstance(prefilled, Crash):
            self._cut_chunks(group, prefilled, launched)
            return [prefilled] if prefilled else []
        if self.ranks.has_lost_one(prefilled.error):
            raise prefilled.error  # no prompt can go on
        fault = fault_of(prefilled.error)
        if fault in OUT_OF_MEMORY:
            self._prefiller.fail([chunk.prefill for chunk in group], together=False)
            launched.starved += group
            launched.fault = fault
        elif fault is not None:
            raise prefilled.error  # the device failed, perhaps in earlier work
        elif len(group) > 1:
            self._prefiller.fail([chunk.prefill for chunk in group], together=True)
            return [rows for chunk in group for rows in self._prefill_group((chunk,), launched)]
        elif isinstance(prefilled.error, LostTokens) or self._is_first_failure(group[0]):
            self._prefiller.fail([group[0].prefill], together=False)
            launched.lost += group
        elif not self.ranks.are_several and self.is_broken():
            raise prefilled.error
        else:
            _log.error("prefill of %s failed", group[0].prefill.request, exc_info=prefilled.error)
            self._prefiller.fail([group[0].prefill], together=False)
            message = f"{prefilled.summary} while reading the prompt"
            launched.failures.append(ChunkFailure(group[0], message))
        return []

    def _is_first_failure(self, chunk: Chunk) -> bool:
        """Note that a prompt failed alone. It is to blame if it fails twice and another works."""
        is_first = chunk.prefill not in self._failed_prefills
        self._failed_prefills ^= {chunk.prefill}
        return is_first

    def _cut_chunks(
        self, group: Sequence[Chunk], prefilled: Prefilled | None, launched: ChunksLaunched
    ) -> None:
        for index, chunk in enumerate(group):
            if chunk.joins:
                self._failed_prefills.discard(chunk.prefill)
            caches = prefilled.caches if prefilled else self._prefiller.unfinished(chunk.prefill)
            if caches is not None:
                row = CacheRow(index, chunk.stop)
                launched.payloads += [self._cut_payloads(caches, row, cut) for cut in chunk.cuts]
                if chunk.tokens:
                    launched.last = cache_ops.completion_marker(caches)

    def cut(self, cuts: Sequence[RowCut]) -> list[CutPayload]:
        payloads = []
        # Rows that are not behind come first: when others catch up, rings drop tokens of these.
        for row_cut in sorted(cuts, key=lambda cut: self._batch.is_behind(cut.id)):
            index = self._batch.index_of(row_cut.id)
            if index is not None and self._batch.cached_tokens(index) == row_cut.length:
                if self._batch.is_behind(row_cut.id):
                    self._batch.catch_up()
                if self._batch.is_behind(row_cut.id):
                    continue  # another row refers to what is lost
                row = CacheRow(index, row_cut.length)
                payloads.append(self._cut_payloads(self._batch.caches, row, row_cut.cut))
        return payloads

    def _cut_payloads(self, caches: Caches, row: CacheRow, cut: Cut) -> CutPayload:
        assert self.codec is not None
        block = self.codec.cut_block(caches, row, cut.start, cut.stop) if cut.block else None
        checkpoint = self.codec.cut_checkpoint(caches, row) if cut.worth is not None else None
        for payload in (block, checkpoint):
            if payload is not None:
                device.launch(*payload.buffers)
        return CutPayload(cut, block, checkpoint)


def _trial_join() -> Join:
    id = SequenceId(RequestId("trial"), 0)
    greedy = SamplingParams(max_tokens=1, temperature=0)
    return Join(id, (1,) * _TRIAL_TOKENS, _TRIAL_TOKENS, greedy)


def _check_finite(result: StepResult) -> None:
    if any(token.id == NOT_FINITE for row in result.rows.values() for token in row.tokens):
        raise LoadFailed(
            "the model's logits are not finite (NaN)",
            hint="Its files are damaged, or this MLX can't compute its weights' format",
        )
