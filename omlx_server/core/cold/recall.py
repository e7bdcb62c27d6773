"""Chooses what to read from the cold tier: full blocks by key, the rest by tokens. Pure."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omlx_server.core.blocks.block import CacheLayout
from omlx_server.core.blocks.keys import BlockKey, shared
from omlx_server.core.blocks.lookup import PrefixHandle, PrefixMatch
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cold.index import ColdEntry, ColdIndex
from omlx_server.core.request import Miss

# Tokens. Fewer are always computed, and not timed.
_SHORTEST_READ = 16
# Seconds. A disk reads a block within one; the watchdog gives up a read after 120.
_LEAST_PATIENCE, _MOST_PATIENCE = 1.0, 60.0
# Seconds per computed token before the first measurement.
_UNKNOWN_TOKEN_SECONDS = 1e-3
# What is left of a slow reading speed each time that computing was faster.
_FORGOTTEN = 0.95
_MOST_CANDIDATES = 4096


@dataclass(slots=True)
class Rates:
    """Average speeds of computing and reading; 0 before any measurement."""

    seconds_per_token: float = 0.0
    seconds_per_byte: float = 0.0

    def note_computing(self, tokens: int, seconds: float) -> None:
        if tokens >= _SHORTEST_READ:
            self.seconds_per_token = _moving_mean(self.seconds_per_token, seconds / tokens)

    def note_reading(self, nbytes: int, seconds: float) -> None:
        if nbytes:
            self.seconds_per_byte = _moving_mean(self.seconds_per_byte, seconds / nbytes)

    def reading_pays(self, tokens: int, nbytes: int) -> bool:
        if tokens < _SHORTEST_READ:
            return False
        computing_seconds = tokens * self.seconds_per_token
        if not computing_seconds or nbytes * self.seconds_per_byte < computing_seconds:
            return True
        self.seconds_per_byte *= _FORGOTTEN  # so that reading is tried again
        return False

    def patience(self, tokens: int) -> float:
        """Return the seconds to wait for a read that saves `tokens`, from 1 to 60."""
        computing_seconds = tokens * (self.seconds_per_token or _UNKNOWN_TOKEN_SECONDS)
        return min(max(_LEAST_PATIENCE, computing_seconds), _MOST_PATIENCE)


@dataclass(frozen=True, slots=True)
class RecallPrompt:
    """A prompt, and how many of its tokens are in memory."""

    root: BlockKey
    tokens: tuple[int, ...]
    keys: Sequence[BlockKey]
    full: int  # tokens in memory in full blocks
    known: int  # the same, and the shared part of one more block
    cached: int  # tokens up to the last point that can be restored from memory

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
    longest, records = _records_within(prompt, cold, layout, namespace, sys.maxsize)
    reached = longest
    if _total_bytes(cold, records) > room:
        reached, records = _records_within(prompt, cold, layout, namespace, room)
    lacks_room = reached < longest and longest - prompt.cached >= _SHORTEST_READ
    why = Miss.NO_ROOM if lacks_room else None
    gained_tokens = reached - prompt.cached
    if not records or rates.reading_pays(gained_tokens, _total_bytes(cold, records)):
        return Recall(records, why)
    # Computing these tokens is faster than reading them.
    return Recall([], Miss.SLOW if gained_tokens >= _SHORTEST_READ else why)


def _records_within(
    prompt: RecallPrompt, cold: ColdIndex, layout: CacheLayout, namespace: str, room: int
) -> tuple[int, list[Record]]:
    # Returns how far the prompt can be restored with `room` bytes of records, and these.
    records = _blocks_within(prompt, cold, layout.block_size, namespace, room)
    deepest = max(prompt.known, reach(prompt, records[-1]) if records else 0)
    if not layout.checkpointed:
        return deepest, records
    checkpoint = _deepest_checkpoint(prompt, cold, layout.block_size, deepest, records, room)
    if checkpoint is None:
        return prompt.cached, []
    return checkpoint.stop, _blocks_with_checkpoint(checkpoint, records)


def candidates(
    prompt: RecallPrompt,
    cold: ColdIndex,
    layout: CacheLayout,
    namespace: str,
    checkpoints_at: Iterable[int],
) -> list[Record]:
    """Return what a store that can't list its keys is asked for: blocks beyond memory, and the
    block and checkpoint that end at each of `checkpoints_at`."""
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


def forget_beyond(
    cold: ColdIndex, keys: Sequence[BlockKey], tokens: Sequence[int], start: int
) -> list[ColdEntry]:
    """Forget what is stored of a sequence beyond its token `start`, and all that follows. `keys`:
    its root, and those of its full blocks. Return what is forgotten."""
    records = (record for parent in keys for record in cold.children(parent))
    gone = cold.chains(
        record.key
        for record in records
        if record.stop > start and record.tokens == tokens[record.start : record.stop]
    )
    for entry in gone:
        cold.forget(entry.key)
    return gone


def _blocks_within(
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
    tail = _best_partial_block(prompt, cold, at, prompt.parent_of(at, size))
    if tail is not None and _total_bytes(cold, [tail]) <= room:
        records.append(tail)
    return records


def reach(prompt: RecallPrompt, record: Record) -> int:
    """Return the end of the tokens that a prompt shares with a record."""
    return record.start + shared(record.tokens, prompt.tokens[record.start : record.stop])


def _best_partial_block(
    prompt: RecallPrompt, cold: ColdIndex, at: int, parent: BlockKey
) -> Record | None:
    # The child that shares the most tokens with the prompt, if more than memory has.
    best, longest = None, max(prompt.known - at, 0)
    for record in cold.children(parent):
        length = reach(prompt, record) - at
        if record.part is RecordKind.BLOCK and length > longest:
            best, longest = record, length
    return best


def _deepest_checkpoint(
    prompt: RecallPrompt, cold: ColdIndex, size: int, deepest: int, blocks: list[Record], room: int
) -> Record | None:
    # From the deepest block down to the first that holds a token beyond memory.
    for start in range((deepest - 1) // size * size, -1, -size):
        checkpoints = [
            record
            for record in cold.children(prompt.parent_of(start, size))
            if record.part is RecordKind.CHECKPOINT
            and prompt.cached < record.stop <= deepest
            and prompt.tokens[start : record.stop] == record.tokens
            and _total_bytes(cold, _blocks_with_checkpoint(record, blocks)) <= room
        ]
        if checkpoints:
            return max(checkpoints, key=lambda record: record.stop)
        if start + size <= prompt.cached:
            break
    return None


def _blocks_with_checkpoint(checkpoint: Record, blocks: list[Record]) -> list[Record]:
    return [*(block for block in blocks if block.start < checkpoint.stop), checkpoint]


def _total_bytes(cold: ColdIndex, records: list[Record]) -> int:
    entries = (cold.entry(record.key) for record in records)
    return sum(entry.nbytes for entry in entries if entry is not None)


def _moving_mean(old: float, new: float) -> float:
    return new if not old else 0.7 * old + 0.3 * new
