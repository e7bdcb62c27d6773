"""Reads blocks from the cold tier for waiting prompts. Pure; owned by the prefix cache."""

import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import chain

from omlx_server.core.blocks.block import Block, CacheLayout, Checkpoint
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.lookup import PrefixHandle, PrefixMatch
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.cold.recall import Rates, Recall, RecallPrompt, candidates, recall
from omlx_server.core.request import Miss

# Reads per prompt, at most: others may evict what was read while it waits for the rest.
_MOST_READS = 8


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """Asks an unlisted store which of these records it has."""

    id: int
    records: tuple[Record, ...]


class ColdWaits:
    """Questions and reads that prompts wait for. A read serves all prompts that want it."""

    def __init__(self) -> None:
        self._reads: list[Record] = []
        self._waiting: dict[BlockKey, list[PrefixHandle]] = {}
        self._questions: list[StoreQuery] = []
        self._asking: dict[int, PrefixHandle] = {}
        self._last_question = 0

    @property
    def reading(self) -> Collection[BlockKey]:
        return self._waiting.keys()

    def take_questions(self) -> list[StoreQuery]:
        questions, self._questions = self._questions, []
        return questions

    def take_reads(self) -> list[Record]:
        reads, self._reads = self._reads, []
        return reads

    def ask(self, handle: PrefixHandle, records: Iterable[Record]) -> None:
        self._last_question += 1
        handle.question = self._last_question
        self._asking[handle.question] = handle
        self._questions.append(StoreQuery(handle.question, tuple(records)))

    def take_answer(self, question: int) -> PrefixHandle | None:
        """Note an answer, and return the handle that waits for it."""
        handle = self._asking.pop(question, None)
        if handle is not None:
            handle.question = 0
        return handle

    def want(self, handle: PrefixHandle, records: Iterable[Record]) -> None:
        for record in records:
            if record.key not in self._waiting:
                self._reads.append(record)
            self._waiting.setdefault(record.key, []).append(handle)
            handle.reading.add(record.key)

    def take_waiting(self, key: BlockKey) -> list[PrefixHandle]:
        return self._waiting.pop(key, [])

    def read_again(self, record: Record, waiting: list[PrefixHandle]) -> None:
        """Read a record once more that came before its parent."""
        if waiting:
            self._waiting[record.key] = waiting
            self._reads.append(record)

    def note_arrival(
        self, handle: PrefixHandle, record: Record, entry: Block | Checkpoint | None, nbytes: int
    ) -> None:
        """Note a record that came for a prompt, with `nbytes` of its room. `entry` is leased."""
        handle.reading.discard(record.key)
        handle.room -= nbytes
        if entry is not None:
            handle.leased.append(entry)
            handle.promoted = record.stop
        if handle.room < 0:
            handle.missed = Miss.NO_ROOM
            self.stop(handle)

    def note_failure(self, handle: PrefixHandle, key: BlockKey, reason: str) -> None:
        handle.reading.discard(key)
        handle.missed = Miss.LATE if reason == "timeout" else Miss.UNREADABLE
        self.stop(handle)

    def stop(self, handle: PrefixHandle) -> None:
        self._asking.pop(handle.question, None)
        handle.question = 0
        for key in handle.reading:
            waiting = self._waiting.get(key, [])
            if handle in waiting:
                waiting.remove(handle)
        handle.reading = set()

    def stop_all(self) -> None:
        waiting = [*self._asking.values(), *chain.from_iterable(self._waiting.values())]
        for handle in waiting:
            self.stop(handle)
        self._reads, self._waiting, self._questions = [], {}, []


def comes_early(record: Record, handle: PrefixHandle) -> bool:
    """Return whether a prompt's record came before one that it needs in memory first."""
    others = handle.reading - {record.key}
    return bool(others) if record.part is RecordKind.CHECKPOINT else record.parent in others


class ReadAhead:
    """Reads ahead from a `tier`, if any, at most `most_bytes()` for all waiting prompts."""

    def __init__(
        self, tier: ColdIndex | None, index: BlockIndex, layout: CacheLayout, namespace: str
    ) -> None:
        self.tier = tier
        self.most_bytes: Callable[[], int] = lambda: sys.maxsize
        self.waits = ColdWaits()
        self.rates = Rates()
        self._index = index
        self._layout = layout
        self._namespace = namespace

    def leave(self) -> None:
        self.tier = None
        self.waits.stop_all()

    def enter(self, handle: PrefixHandle, prefix: PrefixMatch) -> None:
        """Read what follows the blocks in memory, if all of it has room."""
        if self.tier is None:
            return
        if not self.tier.listed:
            prompt, stops = RecallPrompt.of(handle, prefix), handle.checkpoints_at
            records = candidates(prompt, self.tier, self._layout, self._namespace, stops)
            if records:
                self.waits.ask(handle, records)
                return
        recalled = self.choose(handle, prefix)
        if recalled.why is not Miss.NO_ROOM:
            self.want(handle, recalled)

    def may_read_more(self, handle: PrefixHandle) -> bool:
        listed = self.tier is not None and self.tier.listed
        failed = handle.missed not in (None, Miss.NO_ROOM)
        return listed and not failed and handle.asked < _MOST_READS

    def choose(self, handle: PrefixHandle, prefix: PrefixMatch) -> Recall:
        """Choose what to read for a prompt, and note the room for it and why it is not all."""
        handle.room = self.room
        recalled = self.recall(RecallPrompt.of(handle, prefix), handle.room)
        handle.missed = recalled.why
        return recalled

    def want(self, handle: PrefixHandle, recalled: Recall) -> None:
        handle.asked += bool(recalled.records)
        self.waits.want(handle, recalled.records)

    def recall(self, prompt: RecallPrompt, room: int) -> Recall:
        if self.tier is None:
            return Recall([])
        return recall(prompt, self.tier, self._layout, self._namespace, self.rates, room)

    @property
    def room(self) -> int:
        """The bytes that may be read besides what is leased or on its way."""
        tier, keys = self.tier, self.waits.reading
        entries = (tier.entry(key) for key in keys) if tier is not None else ()
        coming = sum(entry.nbytes for entry in entries if entry is not None)
        return max(0, self.most_bytes() - self._index.leased_bytes() - coming)
