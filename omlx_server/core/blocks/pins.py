"""Prefixes that stay: neither tier evicts their blocks. Pure; owned by the mlx thread.

A pin names blocks by their keys. So it may come before its blocks do, it holds them in whichever
tier they are, and it means the same after a restart.
"""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import Enum

from omlx_server.core.blocks.block import Block, Checkpoint
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey, root_key


@dataclass(frozen=True, slots=True)
class Pin:
    """`keys` are those of the prefix's full blocks, then of recurrent states in it; `tokens` is how
    many the blocks cover. `root` tells model and tenant; `created` in seconds since 1970; `model`
    is the name under which it was asked for."""

    id: str
    namespace: str
    root: BlockKey
    tokens: int
    created: float
    keys: tuple[BlockKey, ...]
    block_tokens: int = 64
    model: str = ""

    def is_of(self, salt: bytes) -> bool:
        """Whether it is that tenant's."""
        return self.root == root_key(self.namespace, salt)

    def report(self, hot: Container[BlockKey], cold: Container[BlockKey]) -> "PinReport":
        """How much of it these tiers have."""
        size = self.block_tokens
        blocks = self.keys[: self.tokens // size]
        return PinReport(
            self,
            hot_tokens=size * sum(key in hot for key in blocks),
            cold_tokens=size * sum(key in cold for key in blocks),
        )


@dataclass(frozen=True, slots=True)
class PinReport:
    """A pin, and how much of it is in each tier, in tokens of full blocks."""

    pin: Pin
    hot_tokens: int
    cold_tokens: int


class Unpinned(Enum):
    """What came of the wish to end a pin."""

    UNKNOWN = "there is no such pin"
    ENDED = "it is gone"
    STORED = "it holds nothing any more, but its file still names it"


class Pins:
    """All pins of all models and tenants."""

    def __init__(self) -> None:
        self._pins: dict[str, Pin] = {}
        self._keys: Counter[BlockKey] = Counter()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._pins)

    def add(self, pin: Pin) -> Pin | None:
        """The same prefix once more takes the place of the first, which is returned."""
        replaced = self.remove(pin.id)
        self._pins[pin.id] = pin
        self._keys.update(pin.keys)
        return replaced

    def remove(self, id: str) -> Pin | None:
        """Returns what was removed; its keys may be pinned by others as well."""
        pin = self._pins.pop(id, None)
        if pin is not None:
            self._keys.subtract(pin.keys)
            self._keys = +self._keys
        return pin

    def get(self, id: str) -> Pin | None:
        return self._pins.get(id)

    def all(self) -> Iterable[Pin]:
        """In the order in which they were made."""
        return tuple(self._pins.values())


class PinnedBlocks:
    """The leases of pinned blocks that are in memory, of at most `limit` bytes: others have to work
    as well."""

    def __init__(self, index: BlockIndex, pins: Pins, limit: int, state_limit: int) -> None:
        self._index = index
        self._pins = pins
        self._limit = limit
        self._state_limit = state_limit
        self._held: dict[BlockKey, Block | Checkpoint] = {}
        self.nbytes = 0
        self._state_bytes = 0

    def hold(self, key: BlockKey, held: Block | Checkpoint) -> None:
        """Keep it, if it is pinned, what it follows is held, and there is room."""
        if key not in self._pins or key in self._held or not self._follows(held):
            return
        if self.nbytes + held.size.nbytes > self._limit:
            return
        if isinstance(held, Checkpoint):
            if self._state_bytes + held.size.nbytes > self._state_limit:
                return
            self._state_bytes += held.size.nbytes
        self._index.lease(held)
        self._held[key] = held
        self.nbytes += held.size.nbytes

    def _follows(self, held: Block | Checkpoint) -> bool:
        """A lease holds all blocks before it as well: they are to be counted."""
        block = held if isinstance(held, Block) else held.block
        above = block.parent
        assert above is not None
        return above.parent is None or above.key in self._held

    def let_go(self, key: BlockKey) -> None:
        """Undo `hold`, unless another pin wants it."""
        if key in self._held and key not in self._pins:
            self._release(key)

    def of(self, pin: Pin) -> list[Block | Checkpoint]:
        """What is held for a pin, in its order."""
        return [self._held[key] for key in pin.keys if key in self._held]

    def clear(self, root: BlockKey | None = None) -> None:
        """Let go of all, or of what the pins of one root hold."""
        pins = [pin for pin in self._pins.all() if pin.root == root]
        wanted = {key for pin in pins for key in pin.keys}
        for key in list(self._held):
            if root is None or key in wanted:
                self._release(key)

    def _release(self, key: BlockKey) -> None:
        held = self._held.pop(key)
        self.nbytes -= held.size.nbytes
        if isinstance(held, Checkpoint):
            self._state_bytes -= held.size.nbytes
        self._index.release(held)
