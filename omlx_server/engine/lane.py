"""One model at work: its scheduler, its runner, its prefix cache and the payloads that are kept.

Lives on the mlx thread. This is where decisions (core), arrays (compute) and storage (store) meet:
what the runner has cut is kept under the ids that the cache gives, and dropped when it says so.
"""

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import partial

from omlx_server.compute import device
from omlx_server.compute.pack import pack, unpack
from omlx_server.compute.payload import Payload, size_of
from omlx_server.compute.runner import CutPayload, Launched, ModelRunner
from omlx_server.core.blocks import PayloadId
from omlx_server.core.guard import Crash, guarded
from omlx_server.core.keys import BlockKey
from omlx_server.core.limits import Limits
from omlx_server.core.memory.ledger import Ledger
from omlx_server.core.memory.shape import StepShape
from omlx_server.core.packed import Packed, Part, Record
from omlx_server.core.pins import Pin
from omlx_server.core.prefix_cache import PrefixCache
from omlx_server.core.pressure import forwards
from omlx_server.core.request import Admission, Request, Restored, TokenEvent
from omlx_server.core.scheduler import Scheduler
from omlx_server.core.sequence import Sequence
from omlx_server.core.step import Step, StepResult
from omlx_server.core.ticket import Ticket
from omlx_server.core.work import Work
from omlx_server.engine.watch import MemoryWatch
from omlx_server.store.cold import Answered, ColdTier, Recalled
from omlx_server.store.hot import HotTier

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.005
_HEADER_BYTES = 4096  # more than any


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
        self._writing: dict[BlockKey, PayloadId] = {}
        self._make_cache = make_cache
        self._hot = hot
        self.cold = cold
        self._left_cold = False
        self._write_through = write_through
        self.start_over()
        if watch is not None:
            watch.seat.tenant = self

    def start_over(self) -> None:
        """Forget all that was computed and kept."""
        self.restored = list[Restored]()
        self._uncounted = 0  # bytes that were cut by steps which are not read yet
        self.runner.reset()
        self._hot.clear()
        self.cache = self._make_cache()
        if self._left_cold:
            self.cache.leave_cold()
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
        self._write_through = write_through
        self.scheduler.change(self._limits)

    def leave_cold(self) -> None:
        """There is no cold tier from now on: nothing goes there, nobody waits for it. Who owns the
        tier closes it."""
        self.cold, self._left_cold = None, True
        self._writing = {}
        self.cache.leave_cold()

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
            pending=self._pending_bytes(),
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
        if self.cold is None:
            return
        self._request(self.cold)
        for event in self.cold.poll(self.cache.namespace):
            match event:
                case Answered(question=number):
                    self.cache.answered(number)
                case Recalled():
                    self._take_in(self.cold, event)
        if self._request(self.cold):
            self.cold.wake()  # some of it may be there already
        self.drop_evicted()

    def closing(self, seconds: float) -> Work[None]:
        """The end: what is worth keeping goes to the cold tier, as far as `seconds` reach. In
        slices: other models may be at work."""
        cold = self.cold
        if cold is None:
            return
        last = time.monotonic() + seconds
        while (
            cold.reads and time.monotonic() < last - seconds / 2
        ):  # a damaged block is to be written anew
            time.sleep(_POLL_SECONDS)
            self.recall()
            yield
        room, kept = cold.index.budget, list[Record]()
        for held in self.cache.index.by_use():
            if room < held.size.nbytes + _HEADER_BYTES:
                break  # what was used before would take the place of what was used since
            if time.monotonic() > last:
                _log.warning("not all of the prefix cache could be written in %.0f s", seconds)
                break
            if self.cold is not cold:
                return  # it was given up meanwhile
            if held.id not in self._hot:
                continue  # it was evicted
            record = self.cache.record(held)
            if record.start and record.parent not in cold.index:
                continue  # there was no room for its head
            self._write(held.id, record)
            entry = cold.index.entry(record.key)
            room -= entry.nbytes if entry else 0
            kept.append(record)
            yield
            while cold.is_full and time.monotonic() < last:
                time.sleep(_POLL_SECONDS)
                self.recall()
                yield
        if self.cold is cold:
            cold.used(kept[::-1])

    def leave(self) -> None:
        """Nothing is left of it: its memory can go back to the machine."""
        self.cache.reset()
        self.drop_evicted()
        self._hot.clear()
        self.runner.reset()
        if self.watch is not None:
            self.watch.seat.leave()

    def packed(self, ticket: Ticket) -> list[tuple[Record, Packed]]:
        """What is in memory of a prompt, as bytes. Copies no more than a part of a block."""
        packed = []
        for id, record in self.cache.path(ticket):
            payload = self._hot.get(id)
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
            self._hot.put(id, payload)
            self._stored(id)
        self.drop_evicted()
        return id is not None

    def pin(self, tokens: TokenIds, salt: bytes, model: str) -> Pin | None:
        """Keep a prefix in both tiers; `model` is what it is called. None when it is shorter than a
        block, or nothing is ever kept. `PinBoard.made` is to be told of it."""
        pin = self.cache.pin(tokens, salt, time.time(), model) if self.cache.keeps else None
        if pin is not None and self.cold is not None:
            for held in self.cache.pinned_now(pin):
                self._write(held.id, self.cache.record(held))
        return pin

    def unpinned(self, pin: Pin) -> None:
        """It was removed: let go of what no other pin holds."""
        self.cache.unpinned(pin)
        self.drop_evicted()

    def reset_cache(self) -> None:
        """Drop every block that is not in use at this moment, of both tiers, and give the memory
        back."""
        self.cache.reset()
        self.drop_evicted()
        if self.cold is not None:
            self.cold.clear(self.cache.namespace)
        device.give_back()

    def check_invariants(self) -> None:
        """Raise AssertionError when the books and what is there differ."""
        self.scheduler.check_invariants()
        self.cache.index.check_invariants()
        kept = len(self.cache.index) + self.cache.index.checkpoint_count
        assert len(self._hot) == kept, "payloads and index differ"

    def _possible(self, limits: Limits) -> Limits:
        """What this model can do of it."""
        runner = self.runner
        limits = limits if runner.batchable else limits.one_at_a_time()
        return replace(limits, feeds_unevenly=runner.feeds_unevenly, grouping=runner.grouping)

    def _keep(self, payloads: Items[CutPayload]) -> None:
        for made in payloads:
            block, state = self.scheduler.keep(made.stored)
            if block is not None and made.block is not None:
                self._hot.put(block, made.block)
                self._stored(block)
            if state is not None and made.state is not None:
                self._hot.put(state, made.state)
                self._stored(state)
        self.drop_evicted()

    def _stored(self, id: PayloadId) -> None:
        held = self.cache.index.held(id) if self.cold is not None else None
        if held is not None:
            record = self.cache.record(held)
            if self._write_through or record.key in self.cache.pins:
                self._write(id, record)

    def _pending_bytes(self) -> int:
        """What only the queue of the cold tier still holds."""
        if self.cold is None:
            return 0
        pending = self.cold.pending
        self._writing = {key: id for key, id in self._writing.items() if key in pending}
        return sum(pending[key].nbytes for key, id in self._writing.items() if id not in self._hot)

    def _write(self, id: PayloadId, record: Record) -> None:
        assert self.cold is not None
        payload = self._hot.get(id)
        self._writing[record.key] = id
        self.cold.write(record, partial(pack, payload), payload.nbytes)

    def _request(self, cold: ColdTier) -> bool:
        """Whether there was anything to ask for."""
        reading, patience = self.cache.reading, self.cache.rates.patience
        questions, reads = reading.take_questions(), reading.take_reads()
        for question in questions:
            wait = patience(question.records[-1].stop)
            cold.ask(self.cache.namespace, question.id, question.records, wait)
        for record in reads:
            cold.read(record, patience(record.stop))
        return bool(questions or reads)

    def _take_in(self, cold: ColdTier, recalled: Recalled) -> None:
        """A block has come from the cold tier, or not."""
        key = recalled.record.key
        if recalled.packed is None:
            self.cache.give_up(key, recalled.reason)
            return
        payload = guarded(partial(unpack, recalled.packed))
        if isinstance(payload, Crash):
            _log.error("a block from the cold tier is unusable", exc_info=payload.error)
            cold.reject(recalled.record)
            self.cache.give_up(key, "unusable")
            return
        self.cache.rates.read(recalled.nbytes, recalled.seconds)
        id = self.cache.promote(recalled.record, size_of(payload))
        if id is not None:
            self._hot.put(id, payload)

    def drop_evicted(self) -> None:
        for id, record in self.cache.take_demoted():
            self._write(id, record)
        for id in self.cache.take_evicted():
            self._hot.drop(id)


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
