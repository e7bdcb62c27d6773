"""Pins: prefixes whose blocks neither tier evicts, computed yet or not. Pure; mlx thread."""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from omlx_server.core.blocks.block import Block, Checkpoint, Match
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey, checkpoint_key, root_key


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned prefix: `keys` of its blocks, then checkpoints."""

    id: str
    namespace: str
    root: BlockKey
    tokens: int
    created: float
    keys: tuple[BlockKey, ...]
    block_tokens: int = 64
    model: str = ""
    tenant: BlockKey | None = None  # the root without an adapter, where there is one

    def is_of(self, salt: bytes) -> bool:
        return (self.tenant or self.root) == root_key(self.namespace, salt)

    def report(self, hot: Container[BlockKey], cold: Container[BlockKey]) -> "PinReport":
        size = self.block_tokens
        blocks = self.keys[: self.tokens // size]
        return PinReport(
            self,
            hot_tokens=size * sum(key in hot for key in blocks),
            cold_tokens=size * sum(key in cold for key in blocks),
        )


@dataclass(frozen=True, slots=True)
class PinReport:
    """A pin and its tokens in full blocks of each tier."""

    pin: Pin
    hot_tokens: int
    cold_tokens: int


class Unpinned(Enum):
    """The outcome of the removal of a pin."""

    UNKNOWN = "there is no such pin"
    ENDED = "it is gone"
    STORED = "it holds nothing any more, but its file still names it"


class Pins:
    """All pins, and the keys that any of them names."""

    def __init__(self) -> None:
        self._pins: dict[str, Pin] = {}
        self._keys: Counter[BlockKey] = Counter()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._pins)

    def add(self, pin: Pin) -> Pin | None:
        """Add a pin, and return the one it replaces."""
        replaced = self.remove(pin.id)
        self._pins[pin.id] = pin
        self._keys.update(pin.keys)
        return replaced

    def remove(self, id: str) -> Pin | None:
        pin = self._pins.pop(id, None)
        if pin is not None:
            self._keys.subtract(pin.keys)
            self._keys = +self._keys
        return pin

    def get(self, id: str) -> Pin | None:
        return self._pins.get(id)

    def all(self) -> Iterable[Pin]:
        return tuple(self._pins.values())


class PinnedBlocks:
    """Leases pinned blocks and checkpoints, up to `limit` bytes."""

    def __init__(self, index: BlockIndex, pins: Pins, limit: int, checkpoint_limit: int) -> None:
        self._index = index
        self._pins = pins
        self._limit = limit
        self._checkpoint_limit = checkpoint_limit
        self._held: dict[BlockKey, Block | Checkpoint] = {}
        self.nbytes = 0
        self._checkpoint_bytes = 0

    def hold(self, key: BlockKey, entry: Block | Checkpoint) -> None:
        """Lease what is pinned, follows a held block, and has room."""
        if key not in self._pins or key in self._held or not self._follows(entry):
            return
        if self.nbytes + entry.size.nbytes > self._limit:
            return
        if isinstance(entry, Checkpoint):
            if self._checkpoint_bytes + entry.size.nbytes > self._checkpoint_limit:
                return
            self._checkpoint_bytes += entry.size.nbytes
        self._index.lease(entry)
        self._held[key] = entry
        self.nbytes += entry.size.nbytes

    def _follows(self, entry: Block | Checkpoint) -> bool:
        block = entry if isinstance(entry, Block) else entry.block
        above = block.parent
        assert above is not None
        is_root = above.parent is None
        return is_root or above.key in self._held

    def let_go(self, key: BlockKey) -> None:
        if key in self._held and key not in self._pins:
            self._release(key)

    def release_gone(self) -> None:
        """Let go of what was removed from the index."""
        for key, entry in list(self._held.items()):
            if self._index.entry(entry.id) is None:
                self._release(key)

    def of(self, pin: Pin) -> list[Block | Checkpoint]:
        return [self._held[key] for key in pin.keys if key in self._held]

    def clear(self, root: BlockKey | None = None) -> None:
        """Release what the pins under `root` hold, or all."""
        keys = {key for pin in self._pins.all() if pin.root == root for key in pin.keys}
        for key in list(self._held):
            if root is None or key in keys:
                self._release(key)

    def _release(self, key: BlockKey) -> None:
        entry = self._held.pop(key)
        self.nbytes -= entry.size.nbytes
        if isinstance(entry, Checkpoint):
            self._checkpoint_bytes -= entry.size.nbytes
        self._index.release(entry)


def checkpoints_to_pin(
    match: Match, root: BlockKey, tokens: Sequence[int], blocks: Sequence[BlockKey], size: int
) -> list[BlockKey]:
    """Return the keys of a prompt's deepest checkpoint and the one at its end."""
    keys = []
    for end in sorted({len(tokens), max(match.checkpoints(), default=len(tokens))}):
        # A checkpoint hangs on the last full block before it; its key covers the tokens after that.
        start = (end - 1) // size * size
        parent = blocks[start // size - 1] if start else root
        keys.append(checkpoint_key(parent, tokens[start:end]))
    return keys
