"""The cold tier's bytes as files, one per block.

    <root>/lock                                        held by the one process that may write
    <root>/secret                                      the key of all digests
    <root>/pins.json                                   which prefixes are to stay
    <root>/<namespace>/namespace.json                  which model and format this is
    <root>/<namespace>/<xx>/<64 hex>.safetensors       a block; xx are the first digits of its key
    <any of them>/.tmp-<pid>-<run>-<random>            a file that is being written

Owned by the I/O thread. Directories are 0700 and files 0600. A file has its name only when all of
it is written; nothing waits for the disk, so after a power cut a file can be torn, which its digest
tells. Names that are not of these patterns are never opened, counted or deleted.
"""

import errno
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from omlx_server.core.cold import Entry
from omlx_server.core.keys import namespace_id
from omlx_server.core.packed import Record
from omlx_server.store.description import Description, parse_description
from omlx_server.store.format import read_record
from omlx_server.store.medium import Buffer, MediumError, MediumStats, Name, require_fits
from omlx_server.store.operations import READING, WRITING, FileOperations, make_directory, raising
from omlx_server.store.secret import SECRET

T = TypeVar("T")

_NAMESPACE = re.compile(r"[0-9a-f]{16}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_KEY = re.compile(r"[0-9a-f]{64}")
_BLOCK = re.compile(r"([0-9a-f]{64})\.safetensors")
_TEMPORARY = re.compile(r"\.tmp-([1-9][0-9]{0,8})-([0-9a-f]{8})-[0-9a-f]{8}")
_DESCRIPTION = "namespace.json"
PINS = "pins.json"

# Process ids come again, in a container after every restart. This tells the runs apart.
_RUN = secrets.token_hex(4)

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
        self._operations = operations or FileOperations()
        self._free = 0
        self._free_expires = -math.inf
        self._small: dict[Path, bytes] = {}

    # The medium

    def get(self, name: Name) -> bytes | None:
        with raising(READING):
            return self._read(self._path(name), self._max_bytes)

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        self._require_writable()
        path = self._path(name)
        nbytes = sum(memoryview(part).nbytes for part in parts)
        require_fits(nbytes, self._max_bytes)
        with raising(WRITING):
            self._require_free(nbytes)
            self._write(path, parts)

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        with raising(READING):
            return {name for name in names if self._is_file(self._path(name))}

    def delete(self, name: Name) -> None:
        path = self._path(name)
        if self.writable:
            with raising(WRITING):
                self._forget(path)

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
            return self._read(self._path(name), self._max_bytes, first=nbytes)

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
            with raising(WRITING), suppress(FileNotFoundError, NotADirectoryError):
                self._operations.set_mtime(path, now)

    def free_bytes(self) -> int:
        """What can be written to the file system, of the nearest directory that is there."""
        with raising(READING):
            return self._free_bytes()

    def remove_leftovers(self) -> int:
        """Remove files that a process which is gone was writing. Returns how many."""
        removed = 0
        if self.writable:
            with raising(WRITING):
                for directory in list(self._all_directories()):
                    removed += self._remove_leftovers(directory)
        return removed

    def describe(self, id: str) -> Description | None:
        """The description of a namespace, or None if it is missing or damaged."""
        if not _NAMESPACE.fullmatch(id):
            return None
        try:
            data = self._read(self._root / id / _DESCRIPTION, _SMALL_MAX_BYTES)
        except (OSError, MediumError):
            return None
        return None if data is None else parse_description(data, id)

    def read_small(self, name: str) -> bytes | None:
        """A file beside the namespaces; None when it is not there."""
        with raising(READING):
            content = self._read(self._root / name, _SMALL_MAX_BYTES)
        if content is not None:
            self._small.setdefault(self._root / name, content)
        return content

    def write_small(self, name: str, content: bytes) -> None:
        """Written anew as well when somebody removes the whole directory while we run."""
        self._require_writable()
        self._small[self._root / name] = content
        with raising(WRITING):
            self._write(self._root / name, [content])

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

    # One file

    def _path(self, name: Name) -> Path:
        """A name of another shape could lead anywhere."""
        if not (_NAMESPACE.fullmatch(name.namespace) and _KEY.fullmatch(name.key)):
            raise MediumError("io", "not the name of a block")
        return self._root / name.namespace / name.key[:2] / f"{name.key}.safetensors"

    def _read(self, path: Path, limit: int, first: int | None = None) -> bytes | None:
        """The whole file, or its first bytes; None when it is not there."""
        try:
            fd = self._operations.open_read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            found = self._operations.stat_open(fd)
            if not stat.S_ISREG(found.st_mode):
                raise MediumError("io", f"not a regular file: {path}")
            if found.st_size > limit:
                raise MediumError("too-large", f"{found.st_size} bytes: {path}")
            size = found.st_size if first is None else min(first, found.st_size)
            return self._read_open(fd, size)
        finally:
            self._operations.close(fd)

    def _read_open(self, fd: int, size: int) -> bytes:
        """Fewer bytes if the file ends before. One read is enough as a rule, and then no copy."""
        parts: list[bytes] = []
        while size > 0 and (part := self._operations.read(fd, size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _write(self, path: Path, parts: Sequence[Buffer]) -> None:
        temporary = path.with_name(f".tmp-{os.getpid()}-{_RUN}-{secrets.token_hex(4)}")
        try:
            fd = self._open_new(temporary)
            try:
                for part in parts:
                    self._write_open(fd, part)
            finally:
                self._operations.close(fd)
            self._operations.replace(temporary, path)
        except OSError:
            with suppress(OSError):  # no scan takes it for a block, and a later start removes it
                self._operations.unlink(temporary)
            raise

    def _open_new(self, path: Path) -> int:
        """Directories are missing at first, and when somebody removed them while we run."""
        try:
            return self._operations.open_new(path)
        except FileNotFoundError:
            make_directory(self._operations, path.parent)
            self._restore_small_files()
            return self._operations.open_new(path)

    def remember_secret(self, content: bytes) -> None:
        """Without it, nothing that is stored could be used after a restart."""
        self._small[self._root / SECRET] = content

    def _restore_small_files(self) -> None:
        for path, content in self._small.items():
            if not self._is_file(path):
                self._write(path, [content])

    def _write_open(self, fd: int, part: Buffer) -> None:
        view = memoryview(part)
        left = view.cast("B") if view.nbytes else memoryview(b"")
        while left:
            written = self._operations.write(fd, left)
            if written == 0:
                raise OSError(errno.EIO, "nothing could be written")
            left = left[written:]

    def _forget(self, path: Path) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            self._operations.unlink(path)

    def _is_file(self, path: Path) -> bool:
        try:
            return stat.S_ISREG(self._operations.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _require_writable(self) -> None:
        if not self.writable:
            raise MediumError("read-only", "another process writes to this directory")

    def _require_free(self, nbytes: int) -> None:
        """Asks the system at most once a second, and counts what is written meanwhile."""
        if not self.min_free_bytes:
            return
        now = self._clock()
        if now >= self._free_expires:
            self._free = self._free_bytes()
            self._free_expires = now + _FREE_SECONDS
        if self._free - nbytes < self.min_free_bytes:
            raise MediumError("full", f"{self._free} bytes are free")
        self._free -= nbytes

    def _free_bytes(self) -> int:
        for path in (self._root, *self._root.parents):
            with suppress(FileNotFoundError):
                return self._operations.free_bytes(path)
        raise FileNotFoundError(errno.ENOENT, "no directory is there", str(self._root))

    # Directories

    def _namespaces(self, only: str | None = None) -> list[str]:
        with raising(READING):
            found = self._directories(self._root, _NAMESPACE)
        return [id for id in found if only in (None, id)]

    def _shards(self, id: str) -> list[str]:
        with raising(READING):
            return self._directories(self._root / id, _SHARD)

    def _directories(self, path: Path, pattern: re.Pattern[str]) -> list[str]:
        return [
            entry.name
            for entry in self._entries(path)
            if pattern.fullmatch(entry.name) and self._operations.is_directory(entry)
        ]

    def _all_directories(self) -> Iterator[Path]:
        yield self._root
        for id in self._namespaces():
            yield self._root / id
            for shard in self._shards(id):
                yield self._root / id / shard

    def _entries(self, path: Path) -> list[os.DirEntry[str]]:
        try:
            return self._operations.scan(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _files(self, path: Path) -> Iterator[tuple[str, os.stat_result]]:
        """Regular files of a directory by name."""
        for entry in self._entries(path):
            try:
                found = self._operations.stat_entry(entry)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield entry.name, found

    def _blocks(self, id: str, shard: str) -> list[Found]:
        blocks = []
        with raising(READING):
            for name, found in self._files(self._root / id / shard):
                match = _BLOCK.fullmatch(name)
                if match and name.startswith(shard):
                    blocks.append(Found(Name(id, match[1]), found.st_size, found.st_mtime))
        return blocks

    def _remove_leftovers(self, directory: Path) -> int:
        removed = 0
        for name, _ in self._files(directory):
            if self._is_leftover(name):
                self._forget(directory / name)
                removed += 1
        return removed

    def _is_leftover(self, name: str) -> bool:
        match = _TEMPORARY.fullmatch(name)
        if not match:
            return False
        pid, run = int(match[1]), match[2]
        if pid == os.getpid():
            return run != _RUN
        return not self._operations.process_lives(pid)

    def _clear(self, id: str) -> list[Found]:
        """Removes the blocks of a namespace, and what is then empty. Returns the blocks."""
        removed = []
        directory = self._root / id
        for shard in self._shards(id):
            for found in self._blocks(id, shard):
                self._forget(self._path(found.name))
                removed.append(found)
            self._remove_if_empty(directory / shard)
        if self._is_file(directory / _DESCRIPTION):
            self._forget(directory / _DESCRIPTION)
        self._remove_if_empty(directory)
        return removed

    def _remove_if_empty(self, directory: Path) -> None:
        try:
            self._operations.remove_directory(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


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
