"""What to bring back from the cold tier for a prompt: pure, over names only.

Blocks are asked for by the keys that a prompt's tokens give, so nothing is read that it does not
begin with. Recurrent state stands at positions that names don't tell: the deepest is looked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.core.cold import ColdIndex
from omlx_server.core.keys import BlockKey, block_key, state_key
from omlx_server.core.layout import CacheLayout
from omlx_server.core.packed import Part, Record

# Each position costs a hash; the newest state of a conversation is near its end.
_STATE_POSITIONS = 4096
# Until both have been measured: a block is read about ten times as fast as it is computed.
_SHORTEST_READ = 16
_LEAST_PATIENCE = 1.0


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
        return not computing or nbytes * self.seconds_per_byte < computing

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
    reach = max([prompt.known, *(record.stop for record in records)])
    if layout.checkpointed:
        state = _state(prompt, cold, layout.block_size, namespace, reach)
        if state is None:
            return []
        reach = state.stop
        records = [record for record in records if record.start < reach] + [state]
    nbytes = sum(entry.nbytes for r in records if (entry := cold.entry(r.key)))
    pays = records and rates.reading_pays(reach - prompt.cached, nbytes)
    return records if pays else []


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
    parent = prompt.parent_of(at, size)
    for stop in range(min(at + size - 1, len(prompt.tokens)), max(at, prompt.known), -1):
        entry = cold.entry(block_key(parent, prompt.tokens[at:stop]))
        if entry is not None and entry.nbytes <= room:
            records.append(Record(namespace, parent, at, prompt.tokens[at:stop]))
            break
    return records


def _state(prompt: Prompt, cold: ColdIndex, size: int, namespace: str, reach: int) -> Record | None:
    """The deepest state within reach that gains anything."""
    lowest = max(prompt.cached, reach - _STATE_POSITIONS)
    for stop in range(reach, lowest, -1):
        start = (stop - 1) // size * size
        parent = prompt.parent_of(start, size)
        own = prompt.tokens[start:stop]
        if state_key(parent, own) in cold:
            return Record(namespace, parent, start, own, Part.STATE)
    return None


def _blend(old: float, new: float) -> float:
    return new if not old else 0.7 * old + 0.3 * new
