"""The cold tier's directory as tools see it while no model runs: which blocks it has, which are
damaged, which have to go, which of them a prompt can use. For the command line; blocking.

It changes something only inside `writing`, which holds the lock: beside a server that writes there
nothing is removed or added. Looking never makes a directory.
"""

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
from omlx_server.store.description import Use
from omlx_server.store.files import PINS, Files, StoredFile
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import MediumError, Name
from omlx_server.store.pin_file import pins_of_bytes
from omlx_server.store.secret import SECRET_BYTES, read_secret

UNREADABLE = "io"
"""The `Checked.reason` of a file that can't be read now, which may pass: it is never removed."""


class InUse(Exception):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A block that was read. `reason`: one word for what is wrong with it. It is empty when every
    byte is right, and when the file has gone meanwhile."""

    found: StoredFile
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What decides which blocks go first. `blocks`: the least recently used first, with their
    `records` in the same order. `gone_models`: ids of namespaces whose models are gone. `pins`:
    what is to stay."""

    blocks: list[StoredFile]
    records: list[Record | None]
    gone_models: list[str]
    pins: Pins

    def index(self, budget: int) -> ColdIndex:
        index = ColdIndex(budget, self.pins)
        index.load(found.entry for found in self.blocks)
        for found, record in zip(self.blocks, self.records, strict=True):
            if record is not None and namespace_id(record.namespace) == found.name.namespace:
                index.learn(record)
        for namespace in self.gone_models:
            index.make_first_to_go(namespace)
        return index


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """What is stored of a prompt. `blocks`: keys of the blocks of its first tokens, parents first.
    `checkpoint`: the key of the recurrent state, if there is one; the blocks then end with the one
    in which it lies. `tokens`: how many can be restored."""

    blocks: tuple[BlockKey, ...]
    checkpoint: BlockKey | None
    tokens: int

    @property
    def keys(self) -> tuple[BlockKey, ...]:
        return self.blocks if self.checkpoint is None else (*self.blocks, self.checkpoint)


class ColdDirectory:
    """One directory of the cold tier, which may be missing."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self._files = Files(self.root, writable=False)

    def uses(self) -> list[Use]:
        """What each namespace takes, in the order of their ids."""
        return self._files.uses()

    def blocks(self) -> list[StoredFile]:
        """All blocks, the least recently used first."""
        return sorted(self._files.scan(), key=lambda found: found.mtime)

    def has_secret(self) -> bool:
        """Whether the secret is there and whole: without it, no stored block can be used."""
        return read_secret(self.root) is not None

    def check(self, blocks: list[StoredFile]) -> Iterator[Checked]:
        """Read each block whole and check it. A block that has gone meanwhile is not wrong."""
        secret = read_secret(self.root) or secrets.token_bytes(SECRET_BYTES)
        for found in blocks:
            yield Checked(found, self._reason(found.name, secret))

    def heads(self, blocks: list[StoredFile]) -> Iterator[Record | None]:
        """The record in the header of each block; None when it makes no sense or can't be read."""
        for found in blocks:
            yield self._record(found.name)

    def read(self, name: Name) -> tuple[Record, PackedArrays] | None:
        """A block, every byte of it checked; None when it can't be used or is not there."""
        secret = read_secret(self.root)
        try:
            data = self._files.get(name)
            return decode(data, secret, name) if data is not None and secret else None
        except (Corrupt, MediumError):
            return None

    def pins(self) -> Pins:
        """The pins, which say what is to stay. Raises MediumError when their file can't be read."""
        pins, data = Pins(), self._files.read_small(PINS)
        for pin in pins_of_bytes(data) if data else ():
            pins.add(pin)
        return pins

    @contextmanager
    def writing(self, *, min_free_bytes: int = 0) -> Iterator[Files]:
        """Hold the lock within a `with`, and give the files that can then be changed. A write that
        would leave less than `min_free_bytes` free on the file system is refused.

        Raises:
            InUse: another process has the lock.
            MediumError: nobody can write here.
        """
        lock = Lock(self.root)
        if not lock.acquire():
            if not os.access(self.root, os.W_OK):
                raise MediumError("read-only", f"{self.root} can't be written to")
            raise InUse
        try:
            yield Files(self.root, min_free_bytes=min_free_bytes)
        finally:
            lock.release()

    # -- inside --------------------------------------------------------------------------

    def _reason(self, name: Name, secret: bytes) -> str:
        try:
            data = self._files.get(name)
            if data is not None:
                decode(data, secret, name)
        except (Corrupt, MediumError) as error:
            return error.reason
        return ""

    def _record(self, name: Name) -> Record | None:
        try:
            return self._files.record(name)
        except MediumError:
            return None


def least_needed(there: Inventory, nbytes: int) -> list[Name]:
    """The names of the blocks that have to go, in order, so that at most `nbytes` are left: those
    that the running server would choose.

    A block goes after its children; those of models that are gone go before all others, and what is
    pinned stays.
    """
    gone = there.index(nbytes).shrink_to(nbytes)
    return [Name.of(entry.namespace, entry.key) for entry in gone]


def room_for(
    incoming: Sequence[tuple[Record, int]], there: Inventory, budget: int
) -> list[Name] | None:
    """The names of the blocks that have to go, in order, so that the `incoming` ones fit into
    `budget` bytes: (record, bytes) each, parents first; some of them may be stored already. None
    when there is no room for them."""
    index = there.index(budget)
    for record, _ in incoming:
        index.touch(record.key)
    gone = []
    for record, nbytes in incoming:
        entries = index.add(record, nbytes)
        if entries is None:
            return None
        gone += entries
    gone += index.shrink_to(budget)  # it may have been too much before
    if index.nbytes > budget or not all(record.key in index for record, _ in incoming):
        return None
    return [Name.of(entry.namespace, entry.key) for entry in gone]


def stored_prefix(
    root: BlockKey, tokens: Sequence[int], size: int, usable: Callable[[BlockKey], bool]
) -> StoredPrefix:
    """The longest run of stored blocks of `size` tokens with which a prompt begins, and the deepest
    recurrent state in it. `usable` says whether the block or state of a key is stored and can be
    used.

    A block that continues otherwise than the prompt is not used, although its first tokens could
    serve: what follows there may be somebody else's.
    """
    keys: list[BlockKey] = []
    at = 0
    while at + size <= len(tokens):
        key = block_key(keys[-1] if keys else root, tokens[at : at + size])
        if not usable(key):
            break
        keys.append(key)
        at += size
    parents = [root, *keys]
    for length in range(min(size - 1, len(tokens) - at), 0, -1):
        key = block_key(parents[-1], tokens[at : at + length])
        if usable(key):
            keys.append(key)
            at += length
            break
    for stop in range(at, 0, -1):
        start = (stop - 1) // size * size
        key = checkpoint_key(parents[start // size], tokens[start:stop])
        if usable(key):
            return StoredPrefix(tuple(keys[: start // size + 1]), key, stop)
    return StoredPrefix(tuple(keys), None, at)
