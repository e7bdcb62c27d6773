"""One loaded model, where core, compute and store meet. Lives on the mlx thread."""

import logging
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

from omlx_server import clock
from omlx_server.compute.hardware import device
from omlx_server.compute.launched import ChunksLaunched, CutPayload, Launched
from omlx_server.compute.payload import Payload
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.pins import Pin
from omlx_server.core.chunk_sizes import ChunkSizes
from omlx_server.core.device_errors import DeviceFault, Reaction, RecentFaults
from omlx_server.core.memory.guard import Caches
from omlx_server.core.memory.kv import StepShape
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.prefix_cache.report import Dropped
from omlx_server.core.request import Miss, Request, Restored, TokenEvent
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.memory_admission import group_shapes
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.core.scheduler.sequence import Sequence
from omlx_server.core.speculation.speculation import DraftController
from omlx_server.core.step import SequenceId, Step, StepResult
from omlx_server.engine.decode_times import DecodeTimes
from omlx_server.engine.memory.account import MemoryWatch
from omlx_server.engine.memory.adapters import LoadedAdapters
from omlx_server.engine.memory.image_features import KeptFeatures
from omlx_server.engine.tiers import Tiers
from omlx_server.store.cold import ColdTier

_log = logging.getLogger(__name__)


class ModelInstance:
    """A loaded model that generates. Without `watch` its memory has no limit."""

    def __init__(
        self,
        runner: ModelRunner,
        limits: SchedulerLimits,
        make_cache: Callable[[], PrefixCache],
        hot: dict[PayloadId, Payload],
        cold: ColdTier | None = None,
        *,
        write_through: bool = False,
        watch: MemoryWatch | None = None,
        speculation: DraftController | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self.runner = runner
        self.ranks = runner.ranks
        self.weight_bytes = runner.loaded.weight_bytes
        self._halvings = 0  # of the limit of dispatches, after failures of the device
        self._limits = self._limits_of_model(limits)
        self.faults = RecentFaults()  # of the device; the engine's, when it works there
        self.watch = watch
        self.speculation = speculation
        self.names = names
        self.decode_times = DecodeTimes(speculation)
        self._make_cache = make_cache
        self.tiers = Tiers(hot, cold, write_through=write_through, ranks=self.ranks)
        self.features = KeptFeatures(runner.loaded.vision, lambda: self.scheduler.queues)
        self.adapters = LoadedAdapters(runner.loaded.adapters, lambda: self.scheduler.queues)
        self.start_over()
        if watch is not None:
            watch.share.holder = self

    def start_over(self) -> None:
        """Forget all sequences and all blocks in memory."""
        self.restored = list[Restored]()
        self._uncounted_bytes = 0  # bytes cut by steps whose tokens are not taken yet
        # Payloads of each step whose chunks may not be done.
        self._cut_by_chunks = deque[list[PayloadId]]()
        self._tails = list[PayloadId]()  # cut of rows that left; may not be computed yet
        self.runner.reset()
        self._forget_blocks()
        self.cache = self._make_cache()
        self.tiers.use_cache(self.cache)
        guard = self.watch.guard if self.watch else None
        if guard is not None:
            self.cache.read_ahead.most_bytes = guard.bytes_for_read_ahead
        self.scheduler = Scheduler(self._limits, self.cache, guard, self.speculation)
        self.features.forget()

    @property
    def chunks(self) -> ChunkSizes:
        return self._limits.chunks

    @property
    def has_work(self) -> bool:
        """Whether there are requests, or rows that the next step has to drop."""
        return self.scheduler.has_work

    @property
    def is_computing(self) -> bool:
        return self.scheduler.queues.is_computing

    @property
    def waits_for_memory(self) -> bool:
        queued = bool(self.scheduler.queues.waiting)
        return queued and self.watch is not None and self.watch.guard.pauses

    @property
    def reserved(self) -> int:
        return self.watch.guard.reserved if self.watch is not None else 0

    @property
    def step_bytes(self) -> int:
        return self.watch.guard.ledger.step if self.watch is not None else 0

    def update_ledger(self) -> None:
        if self.watch is not None:
            self.watch.update_ledger(self.ledger(), self.features.nbytes)

    def fits_without_others(self, request: Request) -> bool:
        """Return whether a request fits if no other model is loaded."""
        weights = self.watch.share.weights if self.watch is not None else 0
        return self.scheduler.admission.fits_without_others(request, weights)

    def change_limits(self, limits: SchedulerLimits, *, write_through: bool) -> None:
        """Use new limits; sequences keep rows and places in the queue."""
        for _ in range(self._halvings):
            limits = limits.with_half_dispatches()
        self._limits = self._limits_of_model(limits)
        self.tiers.write_through = write_through
        self.scheduler.change(self._limits)

    def is_steady(self) -> bool:
        """Return whether the next step needs no `relieve` before it."""
        return self.watch is None or self.scheduler.is_steady()

    def relieve(self, now: float) -> list[TokenEvent]:
        """Free memory where it is short. Return the events of ended sequences."""
        if self.watch is None:
            return []
        self.watch.begin(self.ledger(), self.features.nbytes)
        return self.scheduler.relieve(now)

    def ledger(self) -> Ledger:
        """Return the bytes held, without weights."""
        index = self.cache.index
        # What runs hold beyond their blocks is counted as rows or, without rows, as blocks. It is
        # less than nothing while a tail and a block after it refer to the same tokens of a run.
        beyond_blocks = self.runner.live_bytes - self.runner.runs.block_bytes
        row_bytes = 0 if self.runner.idle else max(0, beyond_blocks)
        gap_bytes = beyond_blocks - row_bytes
        return Ledger(
            live=row_bytes + index.in_use + self.features.nbytes,
            blocks=index.idle_bytes - index.checkpoint_bytes + self._uncounted_bytes + gap_bytes,
            checkpoints=index.checkpoint_bytes,
            pending=self.tiers.pending_bytes(),
        )

    def recover_memory(self) -> list[TokenEvent]:
        """End the newest request, and give back."""
        self._drop_uncomputed()
        events = self.scheduler.fail_newest()
        self.give_back()
        return events

    def give_back(self) -> None:
        """Evict half of the hot tier, and queue all sequences again."""
        self.restart()
        self._evict_half()

    def _evict_half(self) -> None:
        self.features.forget()
        self.cache.eviction.make_room(self.cache.index.nbytes // 2, 0)
        self.drop_evicted(wholly=True)
        device.give_back()

    def halve_dispatches(self) -> None:
        """Submit half as much at once from now on."""
        self._halvings += 1
        self._limits = self._limits_of_model(self._limits.with_half_dispatches())
        self.scheduler.change(self._limits)

    def restart_without_drafts(self) -> None:
        """Restart after a failed step with drafts, and draft none for a while."""
        if self.speculation is not None:
            self.speculation.note_failure()
        self.restart()

    def restart(self) -> list[Sequence]:
        """Queue all sequences again. Return those that ran."""
        self._drop_uncomputed()
        return self.scheduler.queues.restart()

    def _drop_uncomputed(self) -> None:
        """Drop all rows and payloads that a failed step may not have computed."""
        self._uncounted_bytes = 0
        failed = frozenset([*self._tails, *(id for ids in self._cut_by_chunks for id in ids)])
        self._tails = []
        self._cut_by_chunks.clear()
        self.runner.reset()
        self.tiers.drop_lost(failed)
        self.drop_evicted()

    def release_memory(self) -> None:
        """Free the rows of a model that has failed for good."""
        if self.watch is not None:
            self.watch.guard.reserve(Caches())
        self.features.forget()
        self.runner.reset()

    def start_over_with_sequences(self) -> set[SequenceId]:
        """Start over with the same sequences, output kept. Return their ids."""
        groups = self.scheduler.queues.groups()
        self.start_over()
        self.scheduler.queues.take_in(groups)
        return {sequence.id for group in groups for sequence in group}

    def launch(self, step: Step) -> Launched:
        made_room = self.watch is not None and self.watch.guard.made_room
        self.drop_evicted(wholly=made_room)
        if made_room:
            self.features.forget()
        if step.drain_pool:
            device.drain_pool()
        launched = self.runner.decode(step)
        self._uncounted_bytes += _bytes_of((*launched.tails, *launched.payloads))
        for admitted in step.admitted:
            has_missed = admitted.miss is not Miss.NONE
            _log.debug(
                "%s: %d prompt tokens from the cache%s",
                admitted.request_id,
                admitted.cached,
                f" ({admitted.miss}, {admitted.known} known)" if has_missed else "",
            )
        return launched

    def sample(self, launched: Launched) -> None:
        """Launch the sampling of a step's tokens, and keep its tails."""
        before = _bytes_of(launched.payloads)
        self.runner.sample(launched)
        launched.behind_chunks = bool(self._cut_by_chunks)
        tails, launched.tails = launched.tails, ()  # frees what the cache does not keep
        self._uncounted_bytes += _bytes_of(launched.payloads) - before - _bytes_of(tails)
        self._tails += self._keep(tails, computed=False)

    def take_tokens(self, launched: Launched) -> list[TokenEvent]:
        """Wait for a step's tokens, keep its cuts, return the events."""
        result = self.runner.read(launched)
        self.decode_times.note(launched, result)
        tails, self._tails = self._tails, []
        self.tiers.mark_computed(tails)
        self._uncounted_bytes -= _bytes_of(launched.payloads)
        self._keep(launched.payloads)
        events = self.scheduler.update(result)
        if launched.step.row_cuts and launched.step.verifies:
            self._keep(self.runner.cut(launched.step.row_cuts))
        self._trim_features()
        return events

    def launch_chunks(self, launched: Launched) -> tuple[ChunksLaunched, list[TokenEvent]]:
        """Return a step's chunks, launched, and the events of failed prompts."""
        if self.watch is not None and not self._cut_by_chunks:
            self.watch.begin_step()
        chunks = self.runner.prefill(launched.step)
        self.restored += chunks.restored
        self._cut_by_chunks.append(self._keep(chunks.payloads, computed=False))
        chunks.payloads.clear()
        failed = bool(chunks.failures or chunks.starved or chunks.lost)
        if failed:
            self.tiers.drop_lost()
        result = StepResult(
            failures=chunks.failures,
            lost=chunks.lost,
            starved=chunks.starved,
            ends_newest=bool(chunks.starved)
            and self._note_starved(chunks.fault) is Reaction.END_NEWEST,
            chunks_launched=True,
        )
        events = self.scheduler.update(result)
        if chunks.starved:
            self._evict_half()
        if failed:
            self.scheduler.queues.preempt_lost(self.runner.lost)
        return chunks, events

    def _note_starved(self, fault: DeviceFault) -> Reaction:
        reaction = self.faults.note(fault, clock.now())
        _log.error("the device failed (%s) while reading a prompt; %s", fault, reaction.value)
        return reaction

    def note_chunks_done(self, chunks: ChunksLaunched, seconds: float) -> None:
        """Note that a step's chunks took `seconds`. Call in the order of launches."""
        self.tiers.mark_computed(self._cut_by_chunks.popleft())
        self._trim_features()
        if self.watch is not None:
            step = StepShape(prefills=group_shapes(chunks.groups))
            self.watch.note_step(step, clock.now())
            if self._cut_by_chunks:
                self.watch.begin_step()
        self.cache.read_ahead.rates.note_computing(chunks.tokens, seconds)
        self.runner.note_chunk_time(chunks, seconds)
        self.scheduler.note_chunk_time(chunks.chunks, seconds)

    def _trim_features(self) -> None:
        if self.watch is not None:
            self.features.trim(self.watch.guard.limit)

    def recall(self) -> None:
        """Ask the cold tier for blocks, and take in those that have come."""
        self.tiers.recall()
        self.drop_evicted()

    def drop_evicted(self, *, wholly: bool = False) -> None:
        """Drop evicted payloads, and tidy runs if much is unused, if idle, or `wholly`."""
        self.tiers.drop_evicted()
        if self.tiers.has_dropped:
            self.tiers.has_dropped = False
            self.ranks.tidy(wholly=wholly)
            self.runner.runs.tidy(wholly=wholly or self.runner.idle)

    def leave(self) -> None:
        self.cache.reset()
        self.drop_evicted()
        self._forget_blocks()
        self.features.forget()
        self.runner.reset()
        if self.watch is not None:
            self.watch.share.leave()

    def pin(self, tokens: tuple[int, ...], salt: bytes, model: str) -> Pin | None:
        """Pin a prompt's blocks in both tiers. Return None if it has none."""
        if not self.cache.layout.keeps:
            return None
        pin = self.cache.pin(tokens, salt, time.time(), model)
        if pin is not None and self.tiers.cold is not None:
            for entry in self.cache.pinned.of(pin):
                self.tiers.write(entry.id, self.cache.record(entry))
        return pin

    def release_pin(self, pin: Pin) -> None:
        self.cache.release_pin(pin)
        self.drop_evicted()

    def reset_cache(self, salt: bytes | None = None) -> Dropped:
        """Drop unused blocks, of all or one `salt`, from both tiers. Return those in memory."""
        keys = [] if salt is None else self.cache.chain_keys(salt)
        dropped = self.cache.reset(salt)
        self.features.forget()
        self.drop_evicted(wholly=True)
        if self.tiers.cold is not None:
            if salt is None:
                self.tiers.cold.clear(self.cache.namespace)
            else:
                self.tiers.cold.clear_chains(keys)
            self.ranks.clear(None if salt is None else tuple(keys))
        device.drain_pool()
        return dropped

    def check_invariants(self) -> None:
        self.scheduler.check_invariants()
        self.tiers.check_invariants()

    def _forget_blocks(self) -> None:
        self.tiers.hot.clear()
        self.ranks.reset(blocks=True)

    def _limits_of_model(self, limits: SchedulerLimits) -> SchedulerLimits:
        runner = self.runner
        rows = limits.max_batch_size if runner.batchable else 1
        verify = limits.verify & runner.loaded.verifies
        runner.limit_dispatches(limits.dispatch)
        return replace(limits, max_batch_size=rows, verify=verify, grouping=runner.grouping)

    def _keep(self, payloads: Items[CutPayload], *, computed: bool = True) -> list[PayloadId]:
        """Keep the payloads that the cache takes. Return their ids."""
        kept_ids = list[PayloadId]()
        if not payloads:
            return kept_ids
        for piece in payloads:
            ids = self.scheduler.keep(piece.cut, *piece.sizes)
            self.ranks.keep(piece.cut.number, *ids)
            for id, payload in zip(ids, (piece.block, piece.checkpoint), strict=True):
                if id is not None and payload is not None:
                    self.tiers.put(id, payload)
                    kept_ids.append(id)
        if computed:
            self.tiers.mark_computed(kept_ids)
        self.drop_evicted()
        return kept_ids


def _bytes_of(payloads: Items[CutPayload]) -> int:
    if not payloads:  # in most steps
        return 0
    parts = [part for piece in payloads for part in (piece.block, piece.checkpoint)]
    return sum(part.nbytes for part in parts if part is not None)
