"""The cold tier's bytes as files, one per block.

    <root>/lock                                        held by the one process that may write
    <root>/secret                                      the key of all digests
    <root>/pins.json                                   which prefixes are to stay
    <root>/<namespace>/namespace.json                  which model and format this is
    <root>/<namespace>/<xx>/<64 hex>.safetensors       a block; xx are the first digits of its key
    <any of them>/.tmp-<pid>-<run>-<random>            a file that is being written

Owned by the I/O thread. Directories are 0700 and files 0600. Nothing waits for the disk, so after a
power cut a file can be torn, which its digest tells. Names that are not of these patterns are never
opened, counted or deleted.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from omlx_server.core.blocks.keys import namespace_id
from omlx_server.core.blocks.record import Record
from omlx_server.core.cold.index import Entry
from omlx_server.store.description import Description, parse_description
from omlx_server.store.format import read_record
from omlx_server.store.mediums.disk import Disk
from omlx_server.store.mediums.medium import Buffer, MediumError, MediumStats, Name, require_fits
from omlx_server.store.mediums.operations import READING, WRITING, FileOperations, raising
from omlx_server.store.secret import SECRET

T = TypeVar("T")

_NAMESPACE = re.compile(r"[0-9a-f]{16}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_KEY = re.compile(r"[0-9a-f]{64}")
_BLOCK = re.compile(r"([0-9a-f]{64})\.safetensors")
_DESCRIPTION = "namespace.json"
PINS = "pins.json"

_DEFAULT_MAX_BYTES = 1 << 30
_SMALL_MAX_BYTES = 1 << 24
_HEAD_BYTES = 1 << 16
_FREE_SECONDS = 1.0


class Found(NamedTuple):
    """A block's file as the directory shows it. `mtime` is its last use."""

    name: Name
    nbytes: int
    mtime: float

    @property
    def entry(self) -> Entry:
        """The same for an index."""
        return Entry(self.name.block_key, self.name.namespace, self.nbytes)


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """What one namespace takes; without a description if that is missing or damaged, `last_used`
    None without blocks."""

    id: str
    count: int
    nbytes: int
    last_used: float | None
    description: Description | None


class Files:
    """A Medium in a directory, which is made by the first write.

    If not `writable`, because another process has the lock, it reads and changes nothing.
    """

    def __init__(
        self,
        root: Path,
        *,
        writable: bool = True,
        max_bytes: int = _DEFAULT_MAX_BYTES,
        min_free_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        operations: FileOperations | None = None,
    ) -> None:
        self._root = root.absolute()
        self.writable = writable
        self._max_bytes = max_bytes
        self.min_free_bytes = min_free_bytes
        self._clock = clock
        self._disk = Disk(operations or FileOperations())
        self._free = 0
        self._free_expires = -math.inf

    # The medium

    def get(self, name: Name) -> bytes | None:
        with raising(READING):
            return self._disk.read(self._path(name), self._max_bytes)

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        self._require_writable()
        path = self._path(name)
        nbytes = sum(memoryview(part).nbytes for part in parts)
        require_fits(nbytes, self._max_bytes)
        with raising(WRITING):
            self._require_free(nbytes)
            self._disk.write(path, parts)

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        with raising(READING):
            return {name for name in names if self._disk.is_file(self._path(name))}

    def delete(self, name: Name) -> None:
        path = self._path(name)
        if self.writable:
            with raising(WRITING):
                self._disk.remove(path)

    def stats(self) -> MediumStats:
        """Reads all directories."""
        return _totals(self.scan())

    def close(self) -> None:
        """Nothing is held open."""

    # What only files can do

    def scan(
        self,
        namespace: str | None = None,
        on_error: Callable[[MediumError], None] | None = None,
    ) -> Iterator[Found]:
        """All blocks, of one namespace if given, by names and sizes alone. `on_error` is told of
        directories that can't be read, which are passed over; without it, the first one raises."""
        for id in _looked(lambda: self._namespaces(namespace), on_error):
            for shard in _looked(partial(self._shards, id), on_error):
                yield from _looked(partial(self._blocks, id, shard), on_error)

    def head(self, name: Name, nbytes: int = _HEAD_BYTES) -> bytes | None:
        """The first bytes of a file, for `format.read_record`; None when it is not there."""
        with raising(READING):
            return self._disk.read(self._path(name), self._max_bytes, first=nbytes)

    def record(self, name: Name) -> Record | None:
        """What a block says of itself, by its header alone; None when it makes no sense or is not
        there. Nothing of it is proven."""
        head = self.head(name)
        record = read_record(head) if head is not None else None
        return record if record is not None and record.key == name.block_key else None

    def touch(self, name: Name, now: float) -> None:
        """Note a use. Nothing happens when it is not there."""
        path = self._path(name)
        if self.writable:
            with raising(WRITING):
                self._disk.touch(path, now)

    def free_bytes(self) -> int:
        """What can be written to the file system, of the nearest directory that is there."""
        with raising(READING):
            return self._disk.free_bytes(self._root)

    def remove_leftovers(self) -> int:
        """Remove files that a process which is gone was writing. Returns how many."""
        removed = 0
        if self.writable:
            with raising(WRITING):
                for directory in list(self._all_directories()):
                    removed += self._disk.remove_leftovers(directory)
        return removed

    def describe(self, id: str) -> Description | None:
        """The description of a namespace, or None if it is missing or damaged."""
        if not _NAMESPACE.fullmatch(id):
            return None
        try:
            data = self._disk.read(self._root / id / _DESCRIPTION, _SMALL_MAX_BYTES)
        except (OSError, MediumError):
            return None
        return None if data is None else parse_description(data, id)

    def read_small(self, name: str) -> bytes | None:
        """A file beside the namespaces; None when it is not there."""
        with raising(READING):
            content = self._disk.read(self._root / name, _SMALL_MAX_BYTES)
        if content is not None:
            self._disk.kept.setdefault(self._root / name, content)
        return content

    def write_small(self, name: str, content: bytes) -> None:
        """Written anew as well when somebody removes the whole directory while we run."""
        self._require_writable()
        self._disk.kept[self._root / name] = content
        with raising(WRITING):
            self._disk.write(self._root / name, [content])

    def remember_secret(self, content: bytes) -> None:
        """Without it, nothing that is stored could be used after a restart."""
        self._disk.kept[self._root / SECRET] = content

    def write_description(self, description: Description) -> None:
        """Written once; it stays as it was, unless it was written where nobody had the model."""
        self._require_writable()
        id = namespace_id(description.namespace)
        known = self.describe(id)
        if known is None or (description.path and not known.path):
            text = json.dumps(asdict(description), indent=2) + "\n"
            self.write_small(f"{id}/{_DESCRIPTION}", text.encode())
        else:
            self.read_small(f"{id}/{_DESCRIPTION}")  # and remembers it

    def namespaces(self) -> list[NamespaceUse]:
        """Every namespace that has a directory, by id. Reads all directories."""
        uses = []
        for id in sorted(self._namespaces()):
            found = list(self.scan(id))
            nbytes = sum(block.nbytes for block in found)
            last_used = max((block.mtime for block in found), default=None)
            uses.append(NamespaceUse(id, len(found), nbytes, last_used, self.describe(id)))
        return uses

    def clear(self, namespace: str | None = None) -> MediumStats:
        """Remove all blocks, of one namespace if given, and the directories that are then empty.
        Returns what was removed. The secret stays: it would be of no use to anybody."""
        self._require_writable()
        self.remove_leftovers()
        removed: list[Found] = []
        with raising(WRITING):
            for id in self._namespaces(namespace):
                removed += self._clear(id)
        return _totals(removed)

    # Inside

    def _path(self, name: Name) -> Path:
        """A name of another shape could lead anywhere."""
        if not (_NAMESPACE.fullmatch(name.namespace) and _KEY.fullmatch(name.key)):
            raise MediumError("io", "not the name of a block")
        return self._root / name.namespace / name.key[:2] / f"{name.key}.safetensors"

    def _require_writable(self) -> None:
        if not self.writable:
            raise MediumError("read-only", "another process writes to this directory")

    def _require_free(self, nbytes: int) -> None:
        """Asks the system at most once a second, and counts what is written meanwhile."""
        if not self.min_free_bytes:
            return
        now = self._clock()
        if now >= self._free_expires:
            self._free = self._disk.free_bytes(self._root)
            self._free_expires = now + _FREE_SECONDS
        if self._free - nbytes < self.min_free_bytes:
            raise MediumError("full", f"{self._free} bytes are free")
        self._free -= nbytes

    # Directories

    def _namespaces(self, only: str | None = None) -> list[str]:
        with raising(READING):
            found = self._disk.directories(self._root, _NAMESPACE)
        return [id for id in found if only in (None, id)]

    def _shards(self, id: str) -> list[str]:
        with raising(READING):
            return self._disk.directories(self._root / id, _SHARD)

    def _all_directories(self) -> Iterator[Path]:
        yield self._root
        for id in self._namespaces():
            yield self._root / id
            for shard in self._shards(id):
                yield self._root / id / shard

    def _blocks(self, id: str, shard: str) -> list[Found]:
        blocks = []
        with raising(READING):
            for name, found in self._disk.files(self._root / id / shard):
                match = _BLOCK.fullmatch(name)
                if match and name.startswith(shard):
                    blocks.append(Found(Name(id, match[1]), found.st_size, found.st_mtime))
        return blocks

    def _clear(self, id: str) -> list[Found]:
        """Removes the blocks of a namespace, and what is then empty. Returns the blocks."""
        removed = []
        directory = self._root / id
        for shard in self._shards(id):
            for found in self._blocks(id, shard):
                self._disk.remove(self._path(found.name))
                removed.append(found)
            self._disk.remove_if_empty(directory / shard)
        if self._disk.is_file(directory / _DESCRIPTION):
            self._disk.remove(directory / _DESCRIPTION)
        self._disk.remove_if_empty(directory)
        return removed


def _totals(found: Iterable[Found]) -> MediumStats:
    count = nbytes = 0
    for block in found:
        count += 1
        nbytes += block.nbytes
    return MediumStats(count, nbytes)


def _looked(look: Callable[[], list[T]], on_error: Callable[[MediumError], None] | None) -> list[T]:
    try:
        return look()
    except MediumError as error:
        if on_error is None:
            raise
        on_error(error)
        return []
