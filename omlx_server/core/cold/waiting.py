"""Prompts' questions to the cold tier, and reads from it. Pure; mlx thread."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain

from omlx_server.core.blocks.block import Block, Checkpoint
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.request import Miss


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """Asks an unlisted store which of these records it has."""

    id: int
    records: tuple[Record, ...]


class ColdWaits:
    """Questions and reads; each read serves all prompts that want it."""

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

    def again(self, record: Record, waiting: list[PrefixHandle]) -> None:
        """Read a record again that came before its parent."""
        if waiting:
            self._waiting[record.key] = waiting
            self._reads.append(record)

    def note_arrival(
        self, handle: PrefixHandle, record: Record, entry: Block | Checkpoint | None, nbytes: int
    ) -> None:
        """Note that a record came for a prompt, and used `nbytes` of its room. The caller has
        leased `entry`."""
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

    def end(self) -> None:
        waiting = [*self._asking.values(), *chain.from_iterable(self._waiting.values())]
        for handle in waiting:
            self.stop(handle)
        self._reads, self._waiting, self._questions = [], {}, []


def comes_early(record: Record, handle: PrefixHandle) -> bool:
    others = handle.reading - {record.key}
    return bool(others) if record.part is RecordKind.CHECKPOINT else record.parent in others
