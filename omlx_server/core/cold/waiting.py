"""Which prompt waits for what from the cold tier. Pure; owned by the mlx thread.

A store that can't be listed is asked first; then blocks are read, once for all who want them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from omlx_server.core.blocks.block import Block, Checkpoint
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.blocks.record import Part, Record


@dataclass(frozen=True, slots=True)
class Question:
    """Which of these does the store have?"""

    id: int
    records: tuple[Record, ...]


class Reading:
    """Questions and reads, and the tickets behind them."""

    def __init__(self) -> None:
        self._reads: list[Record] = []
        self._readers: dict[BlockKey, list[Ticket]] = {}
        self._questions: list[Question] = []
        self._asking: dict[int, Ticket] = {}
        self._last_question = 0

    def take_questions(self) -> list[Question]:
        """What is to be asked, since the last call."""
        questions, self._questions = self._questions, []
        return questions

    def take_reads(self) -> list[Record]:
        """What is to be read, in order, since the last call."""
        reads, self._reads = self._reads, []
        return reads

    def ask(self, ticket: Ticket, records: Iterable[Record]) -> None:
        self._last_question += 1
        ticket.question = self._last_question
        self._asking[ticket.question] = ticket
        self._questions.append(Question(ticket.question, tuple(records)))

    def answered(self, question: int) -> Ticket | None:
        """Who has asked, if it still waits."""
        ticket = self._asking.pop(question, None)
        if ticket is not None:
            ticket.question = 0
        return ticket

    def want(self, ticket: Ticket, records: Iterable[Record]) -> None:
        """These are read for a prompt, parents first."""
        for record in records:
            if record.key not in self._readers:
                self._reads.append(record)
            self._readers.setdefault(record.key, []).append(ticket)
            ticket.reading.add(record.key)

    def take_readers(self, key: BlockKey) -> list[Ticket]:
        """Who waits for a block, which has come or will not come."""
        return self._readers.pop(key, [])

    def again(self, record: Record, readers: list[Ticket]) -> None:
        """It came before what it follows: these want it once more."""
        if readers:
            self._readers[record.key] = readers
            self._reads.append(record)

    def arrived(
        self, ticket: Ticket, record: Record, held: Block | Checkpoint | None, nbytes: int
    ) -> None:
        """Note what came for a prompt; `held` is leased for it, and `nbytes` are of its room."""
        ticket.reading.discard(record.key)
        ticket.room -= nbytes
        if held is not None:
            ticket.leased.append(held)
            ticket.promoted = record.stop
        if ticket.room < 0:
            self.stop(ticket)

    def failed(self, ticket: Ticket, key: BlockKey, reason: str) -> None:
        """The prompt goes on without it, and without what would have followed."""
        ticket.reading.discard(key)
        ticket.unread = reason
        self.stop(ticket)

    def stop(self, ticket: Ticket) -> None:
        """A prompt waits for nothing any more."""
        self._asking.pop(ticket.question, None)
        ticket.question = 0
        for key in ticket.reading:
            readers = self._readers.get(key, [])
            if ticket in readers:
                readers.remove(ticket)
        ticket.reading = set()

    def end(self) -> None:
        """Nothing will come any more: everybody goes on without."""
        waiting = [*self._asking.values(), *(t for r in self._readers.values() for t in r)]
        for ticket in waiting:
            self.stop(ticket)
        self._reads, self._readers, self._questions = [], {}, []


def comes_early(record: Record, ticket: Ticket) -> bool:
    """Whether what it follows is still being read: it joined a read that had begun before."""
    others = ticket.reading - {record.key}
    return bool(others) if record.part is Part.STATE else record.parent in others
