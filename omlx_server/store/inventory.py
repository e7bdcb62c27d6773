"""The cold tier's directory for commands while no model runs. Blocking."""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omlx_server.core.blocks.keys import BlockKey, block_key, checkpoint_key, namespace_id
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.blocks.record import PackedArrays, Record
from omlx_server.core.cold.index import ColdIndex
from omlx_server.store.block_file import Corrupt, decode
from omlx_server.store.files import PINS, Files, NamespaceUse, StoredFile
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import MediumError, Name
from omlx_server.store.pin_file import pins_of_bytes
from omlx_server.store.secret import SECRET_BYTES, read_secret

UNREADABLE = "io"
"""The `CheckedBlock.reason` of a file that can't be read now; it is never removed."""


class InUse(Exception):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class CheckedBlock:
    """`reason` is one word for the block's damage, or empty."""

    block: StoredFile
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """Blocks, least recently used first, their records, and namespaces without a model."""

    blocks: list[StoredFile]
    records: list[Record | None]
    gone_models: list[str]
    pins: Pins

    def index(self, budget: int) -> ColdIndex:
        index = ColdIndex(budget, self.pins)
        index.load(block.entry for block in self.blocks)
        for block, record in zip(self.blocks, self.records, strict=True):
            if record is not None and namespace_id(record.namespace) == block.name.namespace:
                index.learn(record)
        for namespace in self.gone_models:
            index.make_first_to_go(namespace)
        return index


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """The stored part of a prompt: keys of its first blocks, and of the last one's recurrent
    `checkpoint`, if any. `tokens` can be restored."""

    blocks: tuple[BlockKey, ...]
    checkpoint: BlockKey | None
    tokens: int

    @property
    def keys(self) -> tuple[BlockKey, ...]:
        return self.blocks if self.checkpoint is None else (*self.blocks, self.checkpoint)


class ColdDirectory:
    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self._files = Files(self.root, writable=False)

    def uses(self) -> list[NamespaceUse]:
        return self._files.uses()

    def blocks(self) -> list[StoredFile]:
        return sorted(self._files.scan(), key=lambda block: block.mtime)

    def has_secret(self) -> bool:
        return read_secret(self.root) is not None

    def check(self, blocks: list[StoredFile]) -> Iterator[CheckedBlock]:
        """Check each block. One that has gone meanwhile is not wrong."""
        secret = read_secret(self.root) or secrets.token_bytes(SECRET_BYTES)
        for block in blocks:
            yield CheckedBlock(block, self._find_damage(block.name, secret))

    def records(self, blocks: list[StoredFile]) -> Iterator[Record | None]:
        """Yield the record in each header, or None."""
        for block in blocks:
            try:
                yield self._files.record(block.name)
            except MediumError:
                yield None

    def read(self, name: Name) -> tuple[Record, PackedArrays] | None:
        """Return a verified block; None if it can't be used or is missing."""
        secret = read_secret(self.root)
        try:
            data = self._files.get(name)
            return decode(data, secret, name) if data is not None and secret else None
        except (Corrupt, MediumError):
            return None

    def pins(self) -> Pins:
        """Raises MediumError if the file can't be read."""
        pins, data = Pins(), self._files.read_small(PINS)
        for pin in pins_of_bytes(data) if data else ():
            pins.add(pin)
        return pins

    @contextmanager
    def writing(self, *, min_free_bytes: int = 0) -> Iterator[Files]:
        """Hold the lock, and yield the files to change. Writes leave `min_free_bytes` free.
        Raises InUse if another process has the lock, MediumError if nobody can write."""
        lock = Lock(self.root)
        if not lock.acquire():
            if not os.access(self.root, os.W_OK):
                raise MediumError("read-only", f"{self.root} can't be written to")
            raise InUse
        try:
            yield Files(self.root, min_free_bytes=min_free_bytes)
        finally:
            lock.release()

    def _find_damage(self, name: Name, secret: bytes) -> str:
        try:
            data = self._files.get(name)
            if data is not None:
                decode(data, secret, name)
        except (Corrupt, MediumError) as error:
            return error.reason
        return ""


def blocks_to_evict(inventory: Inventory, nbytes: int) -> list[Name]:
    """Return the blocks to evict, in order, to keep at most `nbytes`."""
    evicted = inventory.index(nbytes).shrink_to(nbytes)
    return [Name.of(entry.namespace, entry.key) for entry in evicted]


def evictions_for(
    incoming: Sequence[tuple[Record, int]], inventory: Inventory, budget: int
) -> list[Name] | None:
    """Return what to evict for `incoming` (record, bytes), parents first; None for too much."""
    index = inventory.index(budget)
    for record, _ in incoming:
        index.touch(record.key)
    evicted = []
    for record, nbytes in incoming:
        entries = index.add(record, nbytes)
        if entries is None:
            return None
        evicted += entries
    evicted += index.shrink_to(budget)  # the directory may have been too large before
    if index.nbytes > budget or not all(record.key in index for record, _ in incoming):
        return None
    return [Name.of(entry.namespace, entry.key) for entry in evicted]


def find_stored_prefix(
    root: BlockKey, tokens: Sequence[int], size: int, usable: Callable[[BlockKey], bool]
) -> StoredPrefix:
    """Return the longest stored run of blocks of `size` tokens at the prompt's start. A last
    block that goes on otherwise than the prompt may be someone else's, and is not used."""
    keys: list[BlockKey] = []
    end = 0  # tokens in these blocks
    while end + size <= len(tokens):
        key = block_key(keys[-1] if keys else root, tokens[end : end + size])
        if not usable(key):
            break
        keys.append(key)
        end += size
    parents = [root, *keys]
    # The longest last block that is not full.
    for length in range(min(size - 1, len(tokens) - end), 0, -1):
        key = block_key(parents[-1], tokens[end : end + length])
        if usable(key):
            keys.append(key)
            end += length
            break
    # The last checkpoint within these blocks.
    for stop in range(end, 0, -1):
        full_blocks = (stop - 1) // size
        key = checkpoint_key(parents[full_blocks], tokens[full_blocks * size : stop])
        if usable(key):
            return StoredPrefix(tuple(keys[: full_blocks + 1]), key, stop)
    return StoredPrefix(tuple(keys), None, end)
