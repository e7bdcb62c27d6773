"""Payloads of one model's blocks, in memory and in the cold tier. Lives on the mlx thread."""

import logging
import time
from collections.abc import Collection, Iterable, Set
from functools import partial

from omlx_server import clock
from omlx_server.compute.payload import Payload, pack, size_of, unpack
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Recalled, Record
from omlx_server.core.cold.index import WriteCause
from omlx_server.core.crash import Crash, guarded
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.ranks import ALONE, NOT_ON_EVERY_RANK, Ranks
from omlx_server.core.work import Work
from omlx_server.store.cold import ColdTier
from omlx_server.store.reads import Answered

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.005
_HEADER_BYTES = 4096  # more than the header of any block file


class Tiers:
    """Payloads in memory, `hot`, and the `cold` tier, which gets evicted blocks, or with
    `write_through` all. Call `use_cache` first."""

    def __init__(
        self,
        hot: dict[PayloadId, Payload],
        cold: ColdTier | None,
        *,
        write_through: bool,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self.cold = cold
        self.write_through = write_through
        self.hot = hot
        self.has_dropped = False
        self._has_left_cold = False
        self._writing: dict[BlockKey, PayloadId] = {}
        self._cache: PrefixCache

    def use_cache(self, cache: PrefixCache) -> None:
        """Use the ids of this `cache`, with no other payloads in memory."""
        self._cache = cache
        if self._has_left_cold:
            cache.leave_cold()

    def leave_cold(self) -> None:
        self.cold, self._has_left_cold = None, True
        self._writing = {}
        self._cache.leave_cold()

    # -- in memory -----------------------------------------------------------------------

    def put(self, id: PayloadId, payload: Payload) -> None:
        """Keep a payload that was cut here; call `mark_computed` for it later."""
        self.hot[id] = payload

    def mark_computed(self, ids: Iterable[PayloadId]) -> None:
        """Note that payloads are computed, and queue some for the cold tier."""
        for id in ids:
            entry = self._cache.index.entry(id) if self.cold is not None else None
            if entry is not None:
                record = self._cache.record(entry)
                if self.write_through or record.key in self._cache.pins:
                    self.write(id, record)

    def drop_evicted(self, failed: Collection[PayloadId] = ()) -> None:
        """Drop evicted payloads. The cold tier gets some, but none that `failed`."""
        if not self._cache.eviction.has_evicted:
            return
        forbidden = self._cache.eviction.take_forbidden()
        if forbidden and self.cold is not None:
            self.cold.drop(forbidden)
            self._ranks.clear(tuple(entry.key for entry in forbidden))
        for id, record, cause in self._cache.take_demoted():
            if not (self.hot[id].is_lost or id in failed):
                self.write(id, record, cause)
        evicted = self._cache.eviction.take_evicted()
        for id in evicted:
            del self.hot[id]
        if evicted:
            self._ranks.drop(evicted)
        self.has_dropped |= bool(evicted)

    def drop_lost(self, failed: Collection[PayloadId] = ()) -> None:
        """Drop blocks that `failed` or whose buffers are lost, and all that follow."""
        lost = [id for id, payload in self.hot.items() if payload.is_lost or id in failed]
        self._cache.eviction.drop_lost(lost)
        self.drop_evicted(failed)

    def check_invariants(self) -> None:
        self._cache.index.check_invariants()
        count = len(self._cache.index) + self._cache.index.checkpoint_count
        assert len(self.hot) == count, "payloads and index differ"

    # -- to the cold tier ----------------------------------------------------------------

    def write(self, id: PayloadId, record: Record, cause: WriteCause = WriteCause.KEPT) -> None:
        assert self.cold is not None
        payload = self.hot[id]
        if not self.cold.may_write(record.key, payload.nbytes, cause):
            return
        self._writing[record.key] = id
        self._ranks.write(id, record)
        self.cold.write(record, partial(pack, payload), payload.nbytes)

    @property
    def writing(self) -> Set[BlockKey]:
        """Keys queued for the cold tier, as of the last `pending_bytes`."""
        return self._writing.keys()

    def pending_bytes(self) -> int:
        """Return bytes held only by the cold tier's queue."""
        if self.cold is None:
            return 0
        pending = self.cold.pending
        self._writing = {key: id for key, id in self._writing.items() if key in pending}
        return sum(
            pending[key].nbytes
            for key, id in self._writing.items()
            if id not in self.hot or self.hot[id].segment is not None
        )

    def write_before_close(self, seconds: float) -> Work[None]:
        """Write the most recently used blocks to the cold tier, for at most `seconds`."""
        cold = self.cold
        if cold is None:
            return
        deadline = clock.now() + seconds
        # Reads end first, since a block that proves damaged has to be written again.
        while cold.reads.under_way and clock.now() < deadline - seconds / 2:
            time.sleep(_POLL_SECONDS)
            self.recall()
            yield
        free_bytes, written = cold.index.budget, list[Record]()
        for entry in self._cache.index.order.by_use():
            if free_bytes < entry.size.nbytes + _HEADER_BYTES:
                break  # older blocks would replace newer ones
            if clock.now() > deadline:
                _log.warning("not all of the prefix cache could be written in %.0f s", seconds)
                break
            if self.cold is not cold:
                return  # it was given up meanwhile
            if entry.id not in self.hot:
                continue  # it was evicted
            record = self._cache.record(entry)
            if record.start and record.parent not in cold.index:
                continue  # its parent was not written
            self.write(entry.id, record)
            stored = cold.index.entry(record.key)
            free_bytes -= stored.nbytes if stored else 0
            written.append(record)
            yield
            while cold.is_full and clock.now() < deadline:
                time.sleep(_POLL_SECONDS)
                self.recall()
                yield
        if self.cold is cold:
            cold.mark_used(written[::-1])

    # -- from the cold tier --------------------------------------------------------------

    def recall(self) -> None:
        if self.cold is None:
            return
        self._send_requests(self.cold)
        for event in self.cold.poll(self._cache.namespace):
            match event:
                case Answered(question=number):
                    self._cache.note_answer(number)
                case Recalled() if not self._ranks.takes(event):
                    self._promote_read(self.cold, event)
        for number, recalled in self._ranks.complete_reads():
            self._ranks.promote(number, self._promote_read(self.cold, recalled))
        if self._send_requests(self.cold):
            self.cold.wake()  # some of it may be there already
        self.drop_evicted()

    def _send_requests(self, cold: ColdTier) -> bool:
        """Ask for all that the cache waits for. Return whether there was anything."""
        waits, rates = self._cache.read_ahead.waits, self._cache.read_ahead.rates
        questions, reads = waits.take_questions(), waits.take_reads()
        for question in questions:
            patience_seconds = rates.patience(question.records[-1].stop)
            cold.reads.ask(question.id, question.records, patience_seconds)
        for record in reads:
            patience_seconds = rates.patience(record.stop)
            self._ranks.read(record, patience_seconds)
            cold.read(record, patience_seconds)
        return bool(questions or reads)

    def _promote_read(self, cold: ColdTier, recalled: Recalled) -> PayloadId | None:
        """Keep a read in memory. Return its id, or None if it is not kept."""
        payload = unpack_or_reject(cold, recalled)
        if isinstance(payload, str):
            if payload == NOT_ON_EVERY_RANK:
                cold.reject(recalled.record)
            self._cache.give_up(recalled.record.key, payload)
            return None
        self._cache.read_ahead.rates.note_reading(recalled.nbytes, recalled.seconds)
        id = self._cache.promote(recalled.record, size_of(payload))
        if id is not None:
            self.hot[id] = payload
        return id


def unpack_or_reject(cold: ColdTier, recalled: Recalled) -> Payload | str:
    """Return the payload that was read, or why there is none. Delete an unusable block."""
    if recalled.packed is None:
        return recalled.reason
    payload = guarded(partial(unpack, recalled.packed))
    if isinstance(payload, Crash):
        _log.error("a block from the cold tier is unusable", exc_info=payload.error)
        cold.reject(recalled.record)
        return "unusable"
    return payload
