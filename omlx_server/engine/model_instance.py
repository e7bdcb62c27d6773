"""One model at work: its scheduler, its runner, its prefix cache and the tiers that it fills.

Lives on the mlx thread. This is where decisions (core), arrays (compute) and storage (store) meet:
what the runner has cut is kept under the ids that the cache gives (engine/tiers.py).
"""

import logging
import time
from collections.abc import Callable, Set
from collections.abc import Sequence as Items
from dataclasses import replace

from omlx_server.compute.hardware import device
from omlx_server.compute.pack import pack, unpack
from omlx_server.compute.payload import Payload, size_of
from omlx_server.compute.runner import CutPayload, Launched, ModelRunner
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.blocks.pins import Pin
from omlx_server.core.blocks.record import Packed, Part, Record
from omlx_server.core.memory.guard import Caches
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.memory.shape import StepShape
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.prefix_cache.report import Dropped
from omlx_server.core.request import Admission, Request, Restored, TokenEvent
from omlx_server.core.scheduler.admission import forwards
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.core.scheduler.sequence import Sequence
from omlx_server.core.step import SequenceId, Step, StepResult
from omlx_server.core.work import Work
from omlx_server.engine.memory.monitor import MemoryWatch
from omlx_server.engine.tiers import Tiers
from omlx_server.store.cold import ColdTier
from omlx_server.store.hot import HotTier

_log = logging.getLogger(__name__)

TokenIds = tuple[int, ...]


class Lane:
    """`make_cache` gives an empty prefix cache; it is asked again when the lane starts over. With a
    `cold` tier, blocks that leave the memory go there; all of them at once if `write_through`."""

    def __init__(
        self,
        runner: ModelRunner,
        limits: Limits,
        make_cache: Callable[[], PrefixCache],
        hot: HotTier[Payload],
        cold: ColdTier | None = None,
        *,
        write_through: bool = False,
        watch: MemoryWatch | None = None,
    ) -> None:
        self.runner = runner
        self._limits = self._possible(limits)
        self.watch = watch
        self._make_cache = make_cache
        self._tiers = Tiers(hot, cold, write_through=write_through)
        self.start_over()
        if watch is not None:
            watch.seat.tenant = self

    def start_over(self) -> None:
        """Forget all that was computed and kept."""
        self.restored = list[Restored]()
        self._uncounted = 0  # bytes that were cut by steps which are not read yet
        self.runner.reset()
        self._tiers.clear()
        self.cache = self._make_cache()
        self._tiers.follow(self.cache)
        guard = self.watch.guard if self.watch else None
        self.scheduler = Scheduler(self._limits, self.cache, guard)

    @property
    def has_work(self) -> bool:
        """Whether there are requests."""
        return self.scheduler.has_work

    @property
    def promised(self) -> int:
        """What the caches of all who are at work will take when they are finished."""
        return self.watch.guard.pledged if self.watch is not None else 0

    @property
    def step(self) -> int:
        """What the step under way was planned to take for itself."""
        return self.watch.guard.ledger.step if self.watch is not None else 0

    def look(self) -> None:
        """Have the account as it is now, for who is about to be let in."""
        if self.watch is not None:
            self.watch.look(self.account())

    def fits_without_others(self, request: Request) -> bool:
        """Whether a request could be served if no other model were loaded."""
        weights = self.watch.seat.weights if self.watch is not None else 0
        return self.scheduler.fits_without_others(request, weights)

    @property
    def weight_bytes(self) -> int:
        return self.runner.loaded.weight_bytes

    def change(self, limits: Limits, *, write_through: bool) -> None:
        """Other bounds from now on; nobody who is here loses anything."""
        self._limits = self._possible(limits)
        self._tiers.write_through = write_through
        self.scheduler.change(self._limits)

    @property
    def cold(self) -> ColdTier | None:
        return self._tiers.cold

    @property
    def writing(self) -> Set[BlockKey]:
        """What it has on the way to the cold tier, or had there a moment ago."""
        return self._tiers.writing

    def leave_cold(self) -> None:
        """There is no cold tier from now on. Who owns it closes it."""
        self._tiers.leave_cold()

    def relieve(self, now: float) -> list[TokenEvent]:
        """Before a step is planned: tell what is held, and make room where there is too little."""
        if self.watch is None:
            return []
        self.watch.begin(self.account())
        return self.scheduler.relieve(now)

    def account(self) -> Ledger:
        """What is held now."""
        index = self.cache.index
        return Ledger(
            live=self.runner.live_bytes,
            blocks=index.nbytes - index.checkpoint_bytes + self._uncounted,
            checkpoints=index.checkpoint_bytes,
            pending=self._tiers.pending_bytes(),
        )

    def starved(self) -> list[TokenEvent]:
        """There was no memory for a step: the newest request ends, all others go back to the queue,
        and half of the hot tier goes."""
        events = self.scheduler.fail_newest()
        self.cache.make_room(self.cache.index.nbytes // 2, 0)
        self.drop_evicted()
        self.restart()
        return events

    def restart(self) -> list[Sequence]:
        """The device has lost what was computed: all go back to the queue. Returns the sequences
        that were live."""
        live = self.scheduler.restart()
        self._uncounted = 0
        self.runner.reset()
        return live

    def give_up(self) -> None:
        """Nothing turns any more: others may need what it held live, or was promised."""
        if self.watch is not None:
            self.watch.guard.promise(Caches())
        self.runner.reset()

    def begin_again(self) -> set[SequenceId]:
        """As `start_over`, but who is here goes to the queue of the new scheduler, output kept.
        Returns who that is."""
        groups = self.scheduler.groups()
        self.start_over()
        self.scheduler.take_in(groups)
        return {sequence.id for group in groups for sequence in group}

    def launch(self, step: Step) -> Launched:
        """Launch a step."""
        self.drop_evicted()
        if step.drain_pool:
            device.drain_pool()
        launched = self.runner.execute(step)
        self._uncounted += _nbytes(launched.payloads)
        for admission in step.admissions:
            _log_admission(admission)
        return launched

    def finish(self, launched: Launched) -> list[TokenEvent]:
        """Wait for all of a step; keep what it has cut."""
        return self.read(launched) + (self.run_chunks(launched) if launched.prefilling else [])

    def read(self, launched: Launched) -> list[TokenEvent]:
        """Wait for a step's tokens."""
        result = launched.read()
        self._uncounted -= _nbytes(launched.payloads)
        self._keep(launched.payloads)
        return self.scheduler.update(result)

    def run_chunks(self, launched: Launched) -> list[TokenEvent]:
        """Run a step's chunks. The events are those of prompts that failed."""
        begun = time.perf_counter()
        if self.watch is not None:
            self.watch.begin_step()
        done = launched.wait()
        self.restored += done.restored
        if self.watch is not None:
            step = StepShape(prefills=forwards(launched.groups))
            self.watch.step_done(step, time.monotonic())
        seconds = time.perf_counter() - begun
        self.cache.rates.computed(launched.prefill_tokens, seconds)
        self.scheduler.chunks_took(seconds)
        self._keep(done.payloads)
        result = StepResult(
            failures=done.failures, lost=done.lost, starved=done.starved, chunks_done=True
        )
        return self.scheduler.update(result)

    def recall(self) -> None:
        """Ask the cold tier for what prompts want, and take in what has come."""
        self._tiers.recall()

    def closing(self, seconds: float) -> Work[None]:
        """The end: what is worth keeping goes to the cold tier, as far as `seconds` reach."""
        return self._tiers.closing(seconds)

    def drop_evicted(self) -> None:
        """What the cache has let go leaves the memory."""
        self._tiers.drop_evicted()

    def leave(self) -> None:
        """Nothing is left of it: its memory can go back to the machine."""
        self.cache.reset()
        self.drop_evicted()
        self._tiers.clear()
        self.runner.reset()
        if self.watch is not None:
            self.watch.seat.leave()

    def packed(self, ticket: Ticket) -> list[tuple[Record, Packed]]:
        """What is in memory of a prompt, as bytes. Copies no more than a part of a block."""
        packed = []
        for id, record in self.cache.path(ticket):
            payload = self._tiers.get(id)
            if record.part is Part.BLOCK:
                payload = payload.first(len(record.tokens))
            packed.append((record, pack(payload)))
        return packed

    def adopt(self, record: Record, root: BlockKey, tokens: TokenIds, packed: Packed) -> bool:
        """Keep a block or a state from elsewhere; a state follows `tokens` of a chain that hangs on
        `root`. False when it is known already. Raises ValueError for arrays that make no sense."""
        payload = unpack(packed)
        id = self.cache.insert(record, root, tokens, size_of(payload))
        if id is not None:
            self._tiers.put(id, payload)
        self.drop_evicted()
        return id is not None

    def pin(self, tokens: TokenIds, salt: bytes, model: str) -> Pin | None:
        """Keep a prefix in both tiers; `model` is what it is called. None when it is shorter than a
        block, or nothing is ever kept. `PinBoard.made` is to be told of it."""
        pin = self.cache.pin(tokens, salt, time.time(), model) if self.cache.keeps else None
        if pin is not None and self.cold is not None:
            for held in self.cache.pinned_now(pin):
                self._tiers.write(held.id, self.cache.record(held))
        return pin

    def unpinned(self, pin: Pin) -> None:
        """It was removed: let go of what no other pin holds."""
        self.cache.unpinned(pin)
        self.drop_evicted()

    def reset_cache(self, salt: bytes | None = None) -> Dropped:
        """Drop every block that is not in use at this moment, of both tiers, of one salt if given,
        and give the memory back. Returns what was in memory."""
        keys = [] if salt is None else self.cache.chain_keys(salt)
        dropped = self.cache.reset(salt)
        self.drop_evicted()
        if self.cold is not None:
            if salt is None:
                self.cold.clear(self.cache.namespace)
            else:
                self.cold.clear_chains(keys)
        device.give_back()
        return dropped

    def check_invariants(self) -> None:
        """Raise AssertionError when the books and what is there differ."""
        self.scheduler.check_invariants()
        self._tiers.check_invariants()

    def _possible(self, limits: Limits) -> Limits:
        """What this model can do of it."""
        runner = self.runner
        limits = limits if runner.batchable else limits.one_at_a_time()
        return replace(limits, feeds_unevenly=runner.feeds_unevenly, grouping=runner.grouping)

    def _keep(self, payloads: Items[CutPayload]) -> None:
        for made in payloads:
            block, state = self.scheduler.keep(made.stored)
            if block is not None and made.block is not None:
                self._tiers.put(block, made.block)
            if state is not None and made.state is not None:
                self._tiers.put(state, made.state)
        self.drop_evicted()


def _nbytes(payloads: Items[CutPayload]) -> int:
    parts = [part for made in payloads for part in (made.block, made.state)]
    return sum(part.nbytes for part in parts if part is not None)


def _log_admission(admission: Admission) -> None:
    _log.info(
        "%s: %d prompt tokens from the cache (%s, %d known)",
        admission.request_id,
        admission.cached,
        admission.miss.value,
        admission.known,
    )
