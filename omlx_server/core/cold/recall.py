"""Chooses what to read from the cold tier for a prompt. Full blocks are found by key, the rest
by their tokens. Pure."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omlx_server.core.blocks.cache_layout import CacheLayout
from omlx_server.core.blocks.keys import BlockKey, shared
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.blocks.restore import PrefixMatch
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.request import Miss

# Tokens. Fewer are always computed, and not timed.
_SHORTEST_READ = 16
# Seconds. A disk reads a block within one; the watchdog gives up a read after 120.
_LEAST_PATIENCE, _MOST_PATIENCE = 1.0, 60.0
# Seconds per computed token before the first measurement.
_UNKNOWN_TOKEN = 1e-3
_HOPE = 0.95
_MOST_CANDIDATES = 4096


@dataclass(slots=True)
class Rates:
    """Average speeds of computing and reading; 0 before any measurement."""

    seconds_per_token: float = 0.0
    seconds_per_byte: float = 0.0

    def note_computing(self, tokens: int, seconds: float) -> None:
        if tokens >= _SHORTEST_READ:
            self.seconds_per_token = _blend(self.seconds_per_token, seconds / tokens)

    def note_reading(self, nbytes: int, seconds: float) -> None:
        if nbytes:
            self.seconds_per_byte = _blend(self.seconds_per_byte, seconds / nbytes)

    def reading_pays(self, tokens: int, nbytes: int) -> bool:
        if tokens < _SHORTEST_READ:
            return False
        computing = tokens * self.seconds_per_token
        if not computing or nbytes * self.seconds_per_byte < computing:
            return True
        self.seconds_per_byte *= _HOPE  # try again after a slow spell
        return False

    def patience(self, tokens: int) -> float:
        """Return the seconds to wait for a read that saves `tokens`, from 1 to 60."""
        computing = tokens * (self.seconds_per_token or _UNKNOWN_TOKEN)
        return min(max(_LEAST_PATIENCE, computing), _MOST_PATIENCE)


@dataclass(frozen=True, slots=True)
class RecallPrompt:
    """A prompt in memory: `full` tokens in full blocks, `known` with part of one more; `cached`
    ones can be restored."""

    root: BlockKey
    tokens: tuple[int, ...]
    keys: Sequence[BlockKey]
    full: int
    known: int
    cached: int

    @classmethod
    def of(cls, handle: PrefixHandle, prefix: PrefixMatch) -> "RecallPrompt":
        match = prefix.match
        full = match.blocks[-1].stop if match.blocks else 0
        return cls(handle.root, handle.tokens, handle.keys, full, match.depth, prefix.cached)

    def parent_of(self, start: int, size: int) -> BlockKey:
        return self.keys[start // size - 1] if start else self.root


@dataclass(frozen=True, slots=True)
class Recall:
    """The `records` to read, parents first, and `why` they are not all."""

    records: list[Record]
    why: Miss | None = None


def recall(
    prompt: RecallPrompt,
    cold: ColdIndex,
    layout: CacheLayout,
    namespace: str,
    rates: Rates,
    room: int,
) -> Recall:
    """Choose at most `room` bytes of records, none if computing is faster."""
    most, records = _within(prompt, cold, layout, namespace, sys.maxsize)
    stop = most
    if _nbytes(cold, records) > room:
        stop, records = _within(prompt, cold, layout, namespace, room)
    why = Miss.NO_ROOM if most > stop and most - prompt.cached >= _SHORTEST_READ else None
    gained = stop - prompt.cached
    if not records or rates.reading_pays(gained, _nbytes(cold, records)):
        return Recall(records, why)
    return Recall([], Miss.SLOW if gained >= _SHORTEST_READ else why)


def _within(
    prompt: RecallPrompt, cold: ColdIndex, layout: CacheLayout, namespace: str, room: int
) -> tuple[int, list[Record]]:
    records = _blocks(prompt, cold, layout.block_size, namespace, room)
    deepest = max([prompt.known, *(reach(prompt, last) for last in records[-1:])])
    if not layout.checkpointed:
        return deepest, records
    checkpoint = _checkpoint(prompt, cold, layout.block_size, deepest, records, room)
    if checkpoint is None:
        return prompt.cached, []
    return checkpoint.stop, _up_to(checkpoint, records)


def candidates(
    prompt: RecallPrompt,
    cold: ColdIndex,
    layout: CacheLayout,
    namespace: str,
    checkpoints_at: Iterable[int],
) -> list[Record]:
    """Return what an unlisted store may have of a prompt."""
    size, total = layout.block_size, len(prompt.tokens)
    if total - prompt.cached < _SHORTEST_READ:
        return []
    starts = range(prompt.full, total, size)
    spans = [(start, min(start + size, total), RecordKind.BLOCK) for start in starts]
    if layout.checkpointed:
        for stop in sorted(at for at in checkpoints_at if prompt.cached < at <= total):
            start = (stop - 1) // size * size
            spans += [(start, stop, RecordKind.BLOCK), (start, stop, RecordKind.CHECKPOINT)]
    records = [
        Record(namespace, prompt.parent_of(start, size), start, prompt.tokens[start:stop], part)
        for start, stop, part in dict.fromkeys(spans)
    ]
    return [record for record in records if record.key not in cold][:_MOST_CANDIDATES]


def _blocks(
    prompt: RecallPrompt, cold: ColdIndex, size: int, namespace: str, room: int
) -> list[Record]:
    records: list[Record] = []
    at = prompt.full
    for key in prompt.keys[at // size :]:
        entry = cold.entry(key)
        if entry is None or entry.nbytes > room:
            break
        room -= entry.nbytes
        parent = prompt.parent_of(at, size)
        records.append(Record(namespace, parent, at, prompt.tokens[at : at + size]))
        at += size
    tail = _tail(prompt, cold, at, prompt.parent_of(at, size))
    entry = cold.entry(tail.key) if tail else None
    if tail is not None and entry is not None and entry.nbytes <= room:
        records.append(tail)
    return records


def reach(prompt: RecallPrompt, record: Record) -> int:
    """Return how far a prompt has a record's tokens."""
    return record.start + shared(record.tokens, prompt.tokens[record.start : record.stop])


def _tail(prompt: RecallPrompt, cold: ColdIndex, at: int, parent: BlockKey) -> Record | None:
    best, longest = None, max(prompt.known - at, 0)
    for record in cold.children(parent):
        length = reach(prompt, record) - at
        if record.part is RecordKind.BLOCK and length > longest:
            best, longest = record, length
    return best


def _checkpoint(
    prompt: RecallPrompt, cold: ColdIndex, size: int, reach: int, blocks: list[Record], room: int
) -> Record | None:
    for start in range((reach - 1) // size * size, -1, -size):
        parent = prompt.parent_of(start, size)
        checkpoints = [
            record
            for record in cold.children(parent)
            if record.part is RecordKind.CHECKPOINT
            and prompt.cached < record.stop <= reach
            and prompt.tokens[start : record.stop] == record.tokens
            and _nbytes(cold, _up_to(record, blocks)) <= room
        ]
        if checkpoints:
            return max(checkpoints, key=lambda record: record.stop)
        if start + size <= prompt.cached:
            break
    return None


def _up_to(checkpoint: Record, blocks: list[Record]) -> list[Record]:
    return [*(block for block in blocks if block.start < checkpoint.stop), checkpoint]


def _nbytes(cold: ColdIndex, records: list[Record]) -> int:
    return sum(entry.nbytes for record in records if (entry := cold.entry(record.key)))


def _blend(old: float, new: float) -> float:
    return new if not old else 0.7 * old + 0.3 * new
