"""The cold tier's directory as tools see it while no model runs: what is there, what is damaged,
what is to go, what of a prompt can be had. For the command line; blocking.

It changes something only inside `writing`, which holds the lock: beside a server that writes there
nothing is removed or added. Looking never makes a directory.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from omlx_server.core.blocks.keys import BlockKey, block_key, namespace_id, state_key
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.blocks.record import Packed, Record
from omlx_server.core.cold.index import ColdIndex
from omlx_server.store.description import Description
from omlx_server.store.files import PINS, Files, Found
from omlx_server.store.format import Corrupt, decode
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import MediumError, Name
from omlx_server.store.pin_file import pins_of_bytes
from omlx_server.store.secret import read_secret

_SECRET_BYTES = 32
_HUB_PREFIX = "models--"
UNREADABLE = "io"
"""A reason of `Checked` that may pass: the file is left, even by who removes what is damaged."""


class InUse(Exception):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one namespace takes. `last_used` is None without blocks."""

    id: str
    blocks: int
    nbytes: int
    last_used: float | None
    description: Description | None

    @property
    def model(self) -> str:
        """What people call it; empty when nobody knows."""
        if self.description is None:
            return ""
        return _hub_name(self.path) or self.description.model

    @property
    def path(self) -> str:
        return self.description.path if self.description else ""

    @property
    def model_is_there(self) -> bool | None:
        """None when nobody can tell."""
        return self.description.model_is_there if self.description else None

    def is_of(self, model: str) -> bool:
        """Whether `model` is its id, the model's name, or the end of its path, as in org/name."""
        wanted = Path(model).parts
        if not wanted:
            return False
        return model in (self.id, self.model) or Path(self.path).parts[-len(wanted) :] == wanted


@dataclass(frozen=True, slots=True)
class Checked:
    """A block that was read. `reason` is empty when every byte is right."""

    found: Found
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What decides who goes first: `blocks`, the least recently used first, with their `records`;
    namespaces (ids) whose models are gone; and what is to stay."""

    blocks: list[Found]
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
class Prefix:
    """What is there of a prompt: `blocks` are those of its first tokens, parents first. Where the
    model needs recurrent state, they end with what `state` needs. `tokens` can be restored."""

    blocks: tuple[BlockKey, ...]
    state: BlockKey | None
    tokens: int

    @property
    def keys(self) -> tuple[BlockKey, ...]:
        return self.blocks if self.state is None else (*self.blocks, self.state)


class ColdDirectory:
    """One directory of the cold tier, which may be missing."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self._files = Files(self.root, writable=False)

    def uses(self) -> list[Use]:
        """Every namespace, by id."""
        return [
            Use(use.id, use.count, use.nbytes, use.last_used, use.description)
            for use in self._files.namespaces()
        ]

    def blocks(self) -> list[Found]:
        """All blocks, the least recently used first."""
        return sorted(self._files.scan(), key=lambda found: found.mtime)

    def has_secret(self) -> bool:
        """Without it, nothing that is stored can be used."""
        return read_secret(self.root) is not None

    def check(self, blocks: list[Found]) -> Iterator[Checked]:
        """Read blocks whole. One that has gone meanwhile is not wrong."""
        secret = read_secret(self.root) or secrets.token_bytes(_SECRET_BYTES)
        for found in blocks:
            yield Checked(found, self._reason(found.name, secret))

    def heads(self, blocks: list[Found]) -> Iterator[Record | None]:
        """What each block says of itself; None when it makes no sense or is gone."""
        for found in blocks:
            yield self._record(found.name)

    def read(self, name: Name) -> tuple[Record, Packed] | None:
        """A block, every byte of it checked; None when it can't be used or is not there."""
        secret = read_secret(self.root)
        try:
            data = self._files.get(name)
            return decode(data, secret, name) if data is not None and secret else None
        except (Corrupt, MediumError):
            return None

    def pins(self) -> Pins:
        """What is to stay."""
        pins, data = Pins(), self._files.read_small(PINS)
        for pin in pins_of_bytes(data) if data else ():
            pins.add(pin)
        return pins

    @contextmanager
    def writing(self, *, min_free_bytes: int = 0) -> Iterator[Files]:
        """The right to remove and to add, for one `with`. What would leave less than
        `min_free_bytes` on the file system is not written.

        Raises:
            InUse: another process has it.
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
    """What has to go, in order, so that `nbytes` are left: as the running server would choose.

    A block goes after its children; those of models that are gone go before all others, and what is
    pinned stays.
    """
    gone = there.index(nbytes).shrink_to(nbytes)
    return [Name.of(entry.namespace, entry.key) for entry in gone]


def room_for(
    incoming: Sequence[tuple[Record, int]], there: Inventory, budget: int
) -> list[Name] | None:
    """What has to go, in order, before blocks of these sizes can come, parents first; some of them
    may be there already. None when there is no room for them."""
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
) -> Prefix:
    """The longest run of blocks of `size` tokens with which a prompt begins, and the deepest
    recurrent state in it. `usable` is asked of every key that is needed, and of no other that is
    there.

    A block that goes on otherwise than the prompt is left, although its first tokens could serve:
    what follows there may be of somebody else.
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
        key = state_key(parents[start // size], tokens[start:stop])
        if usable(key):
            return Prefix(tuple(keys[: start // size + 1]), key, stop)
    return Prefix(tuple(keys), None, at)


def _hub_name(path: str) -> str:
    """The repository of a snapshot in Hugging Face's cache, whose own name is a hash."""
    parts = Path(path).parts
    if parts[-2:-1] != ("snapshots",) or not parts[-3].startswith(_HUB_PREFIX):
        return ""
    return parts[-3].removeprefix(_HUB_PREFIX).replace("--", "/")
