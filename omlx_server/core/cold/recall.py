"""What to bring back from the cold tier for a prompt: pure, over names only.

Full blocks are found by the keys that a prompt's tokens give. What follows the last of them, and
recurrent state, is found by the tokens that the index knows of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omlx_server.core.blocks.keys import BlockKey, shared
from omlx_server.core.blocks.layout import CacheLayout
from omlx_server.core.blocks.record import Part, Record
from omlx_server.core.cold.index import ColdIndex

# Until both have been measured: a block is read about ten times as fast as it is computed.
_SHORTEST_READ = 16
_LEAST_PATIENCE = 1.0
_HOPE = 0.95
_MOST_CANDIDATES = 4096


@dataclass(slots=True)
class Rates:
    """How fast prompts are computed and blocks are read, measured as they are; 0 is unknown."""

    seconds_per_token: float = 0.0
    seconds_per_byte: float = 0.0

    def computed(self, tokens: int, seconds: float) -> None:
        if tokens >= _SHORTEST_READ:
            self.seconds_per_token = _blend(self.seconds_per_token, seconds / tokens)

    def read(self, nbytes: int, seconds: float) -> None:
        if nbytes:
            self.seconds_per_byte = _blend(self.seconds_per_byte, seconds / nbytes)

    def reading_pays(self, tokens: int, nbytes: int) -> bool:
        """Whether `nbytes` are read sooner than the `tokens` that they save are computed."""
        if tokens < _SHORTEST_READ:
            return False
        computing = tokens * self.seconds_per_token
        if not computing or nbytes * self.seconds_per_byte < computing:
            return True
        self.seconds_per_byte *= _HOPE  # else, after a slow spell, nothing would be read for ever
        return False

    def patience(self, tokens: int) -> float:
        """Seconds to wait for a read that saves `tokens`: no longer than computing them takes."""
        return max(_LEAST_PATIENCE, tokens * self.seconds_per_token)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and what of it is in memory.

    `keys` are those of its full blocks; the first `full` tokens are in memory as full blocks,
    `known` with a part of the next one; `cached` of them can be restored without the cold tier.
    """

    root: BlockKey
    tokens: tuple[int, ...]
    keys: Sequence[BlockKey]
    full: int
    known: int
    cached: int

    def parent_of(self, start: int, size: int) -> BlockKey:
        """The key of the full blocks before `start`."""
        return self.keys[start // size - 1] if start else self.root


def recall(
    prompt: Prompt, cold: ColdIndex, layout: CacheLayout, namespace: str, rates: Rates, room: int
) -> list[Record]:
    """What to read, parents first and state last; at most `room` bytes. Empty if it doesn't pay."""
    records = _blocks(prompt, cold, layout.block_size, namespace, room)
    deepest = max([prompt.known, *(reach(prompt, last) for last in records[-1:])])
    if layout.checkpointed:
        state = _state(prompt, cold, layout.block_size, deepest, records, room)
        if state is None:
            return []
        deepest = state.stop
        records = _up_to(state, records)
    pays = records and rates.reading_pays(deepest - prompt.cached, _nbytes(cold, records))
    return records if pays else []


def candidates(
    prompt: Prompt, cold: ColdIndex, layout: CacheLayout, namespace: str, marks: Iterable[int]
) -> list[Record]:
    """What of a prompt may be in a store that can't be listed: blocks after those in memory, its
    tail, and state where prompts leave it. Only what the index does not know already."""
    size, total = layout.block_size, len(prompt.tokens)
    if total - prompt.cached < _SHORTEST_READ:
        return []
    starts = range(prompt.full, total, size)
    spans = [(start, min(start + size, total), Part.BLOCK) for start in starts]
    if layout.checkpointed:
        for stop in sorted(mark for mark in marks if prompt.cached < mark <= total):
            start = (stop - 1) // size * size
            spans += [(start, stop, Part.BLOCK), (start, stop, Part.STATE)]
    records = [
        Record(namespace, prompt.parent_of(start, size), start, prompt.tokens[start:stop], part)
        for start, stop, part in dict.fromkeys(spans)
    ]
    return [record for record in records if record.key not in cold][:_MOST_CANDIDATES]


def _blocks(prompt: Prompt, cold: ColdIndex, size: int, namespace: str, room: int) -> list[Record]:
    """Full blocks after those in memory, then the longest short one that the prompt begins with."""
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


def reach(prompt: Prompt, record: Record) -> int:
    """Up to where a block that follows those of a prompt is the prompt's own."""
    return record.start + shared(record.tokens, prompt.tokens[record.start : record.stop])


def _tail(prompt: Prompt, cold: ColdIndex, at: int, parent: BlockKey) -> Record | None:
    """The block after `parent` that shares the most tokens with the prompt, and more than those
    that are in memory."""
    best, longest = None, max(prompt.known - at, 0)
    for record in cold.children(parent):
        length = reach(prompt, record) - at
        if record.part is Part.BLOCK and length > longest:
            best, longest = record, length
    return best


def _state(
    prompt: Prompt, cold: ColdIndex, size: int, reach: int, blocks: list[Record], room: int
) -> Record | None:
    """The deepest state within reach that gains anything and fits with the blocks before it."""
    for start in range((reach - 1) // size * size, -1, -size):
        parent = prompt.parent_of(start, size)
        states = [
            record
            for record in cold.children(parent)
            if record.part is Part.STATE
            and prompt.cached < record.stop <= reach
            and prompt.tokens[start : record.stop] == record.tokens
            and _nbytes(cold, _up_to(record, blocks)) <= room
        ]
        if states:
            return max(states, key=lambda record: record.stop)
        if start + size <= prompt.cached:
            break
    return None


def _up_to(state: Record, blocks: list[Record]) -> list[Record]:
    """A state after the blocks that it needs."""
    return [*(block for block in blocks if block.start < state.stop), state]


def _nbytes(cold: ColdIndex, records: list[Record]) -> int:
    return sum(entry.nbytes for record in records if (entry := cold.entry(record.key)))


def _blend(old: float, new: float) -> float:
    return new if not old else 0.7 * old + 0.3 * new
