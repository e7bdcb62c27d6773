"""The cold tier of one machine: a real index, reads and writes that take their time.

As in the server, one thread reads, writes and hashes; reads go first. A prompt waits for a read as
long as computing would take, and a write that the queue has no room for is dropped.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from omlx_server.core.blocks.block import Size
from omlx_server.core.blocks.record import Record
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.cold.waiting import StoreQuery
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from scripts.scaling.assumptions import Machine
from scripts.scaling.events import Events, Link
from scripts.scaling.store import SharedStore


class Cold:
    """Files on the SSD, or the shared `store` where there is one. `came` is called when something
    has come for a prompt, or will not come."""

    def __init__(
        self,
        events: Events,
        machine: Machine,
        store: SharedStore | None,
        size: Callable[[Record], Size],
        came: Callable[[], None],
    ) -> None:
        self._events, self._machine, self._store = events, machine, store
        self._size = size
        self._came = came
        self.index = ColdIndex(machine.ssd_budget, listed=store is None)
        medium = machine.ssd_bytes_per_second
        if store is not None:
            medium = store.network.machine_bytes_per_second
        rate = 1 / (1 / medium + 1 / machine.hash_bytes_per_second)
        self.reads, self.writes = Link(rate), Link(rate)
        self.dropped_bytes = 0
        self._queued = 0
        self._cache: PrefixCache

    def follow(self, cache: PrefixCache) -> None:
        """Serve this cache. To be called before anything else."""
        self._cache = cache

    # -- to the tier ---------------------------------------------------------------------

    def write(self, records: Iterable[Record]) -> None:
        """Queue what is not stored yet."""
        taken = list[Record]()
        for record in records:
            nbytes = self._size(record).nbytes
            if record.key in self.index:
                self.index.touch(record.key)
            elif self._queued + nbytes > self._machine.write_queue_bytes:
                self.dropped_bytes += nbytes
            elif self.index.add(record, nbytes) is not None:
                self._queued += nbytes
                taken.append(record)
        if taken:
            self._send(taken)

    def _send(self, records: Sequence[Record]) -> None:
        nbytes = sum(self._size(record).nbytes for record in records)
        end: float | None = None
        if self._store is not None:
            end = self._store.transfer(self._store.into, nbytes)
            if end is None:
                late = self._events.now + self._store.network.deadline
                self._events.at(late, partial(self._lost, records, nbytes))
                return
        end = max(end or 0.0, self.writes.take(self._events.now, nbytes))
        self._events.at(end, partial(self._written, records, nbytes))

    def _written(self, records: Sequence[Record], nbytes: int) -> None:
        self._queued -= nbytes
        if self._store is not None:
            for record in records:
                self._store.put(record.key, self._size(record).nbytes)

    def _lost(self, records: Sequence[Record], nbytes: int) -> None:
        self._queued -= nbytes
        self.dropped_bytes += nbytes
        for record in records:
            self.index.forget(record.key)

    # -- from the tier -------------------------------------------------------------------

    def request(self) -> None:
        """Carry out what prompts ask for."""
        waits = self._cache.read_ahead.waits
        for question in waits.take_questions():
            self._ask(question)
        reads = waits.take_reads()
        if reads:
            self._read(reads)

    def _ask(self, question: StoreQuery) -> None:
        assert self._store is not None
        there = self._store.having(question.records)

        def answered() -> None:
            for record in there:
                self.index.discover(record)
            self._cache.answered(question.id)
            self.request()
            self._came()

        self._events.after(self._store.network.round_trip, answered)

    def _read(self, records: Sequence[Record]) -> None:
        """Read what one prompt wants, block after block. What would come later than computing takes
        is given up."""
        now, nbytes = self._events.now, 0
        for record in records:
            nbytes += self._size(record).nbytes
            self.index.lease(record.key)
        end: float | None = now
        if self._store is not None:
            end = self._store.transfer(self._store.out, nbytes)
            if end is None:
                late = now + self._store.network.deadline
                self._events.at(late, partial(self._come, (), records, 0.0))
                return
        end = max(end or 0.0, self.reads.take(now, nbytes))
        last = min(end, now + self._cache.read_ahead.rates.patience(records[-1].stop))
        count = round(len(records) * (last - now) / (end - now))
        arrived, late_ones = records[:count], records[count:]
        self._events.at(last, partial(self._come, arrived, late_ones, end - now))

    def _come(self, arrived: Sequence[Record], late: Sequence[Record], seconds: float) -> None:
        """Take in what was read, in so many seconds together with what is `late`."""
        count = len(arrived) + len(late)
        for record in arrived:
            self.index.release(record.key)
            size = self._size(record)
            if self._store is not None and self._store.get(record.key) is None:
                self.index.forget(record.key)
                self._cache.give_up(record.key, "gone")
                continue
            self._cache.read_ahead.rates.read(size.nbytes, seconds / count)
            self.index.learn(record)
            self.index.resize(record.key, size.nbytes)
            self.index.touch(record.key)
            self._cache.promote(record, size)
        for record in late:
            self.index.release(record.key)
            self._cache.give_up(record.key, "timeout")
        self.request()
        self._came()
