"""The cold tier's bytes as files, one per block. Owned by the I/O thread.

    <root>/lock                                    held by the one process that may write
    <root>/secret                                  the key of all digests
    <root>/pins.json                               the pinned prefixes
    <root>/written.json                            the bytes written today
    <root>/<namespace>/namespace.json              its model and format
    <root>/<namespace>/<xx>/<64 hex>.safetensors   a block; xx are the first digits of its key
    <any of them>/.tmp-<pid>-<run>-<random>        a file that is being written

Writes are not synced, so a power cut can tear a file; its digest tells. Files with other names are
never opened, counted or deleted.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict

from omlx_server.core.blocks.keys import namespace_id
from omlx_server.core.blocks.record import Record
from omlx_server.core.cold.index import ColdEntry
from omlx_server.store.block_file import FORMAT_VERSION, read_record
from omlx_server.store.mediums.disk import (
    READ_REASONS,
    WRITE_REASONS,
    Disk,
    FileOperations,
    as_medium_errors,
)
from omlx_server.store.mediums.medium import Buffer, MediumError, Name, nbytes_of, require_fits
from omlx_server.store.secret import SECRET

_HUB_PREFIX = "models--"
T = TypeVar("T")

_NAMESPACE = re.compile(r"[0-9a-f]{16}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_KEY = re.compile(r"[0-9a-f]{64}")
_BLOCK = re.compile(r"([0-9a-f]{64})\.safetensors")
_DESCRIPTION = "namespace.json"
PINS = "pins.json"

_DEFAULT_MAX_BYTES = 1 << 30
_SMALL_MAX_BYTES = 1 << 24
_HEADER_BYTES = 1 << 16


class NamespaceDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`path` is the model's directory or "", `created` in seconds since 1970."""

    namespace: str
    model: str
    path: str
    block_size: int
    created: float
    format_version: int = FORMAT_VERSION

    @property
    def model_is_there(self) -> bool | None:
        """Whether the model's directory exists; None if unknown."""
        if not self.path:
            return None
        try:
            Path(self.path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return None
        return True


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """`last_used` in seconds since 1970."""

    id: str
    blocks: int
    nbytes: int
    last_used: float | None
    description: NamespaceDescription | None

    @property
    def model(self) -> str:
        if self.description is None:
            return ""
        return _hub_name(self.path) or self.description.model

    @property
    def path(self) -> str:
        return self.description.path if self.description else ""

    @property
    def model_is_there(self) -> bool | None:
        return self.description.model_is_there if self.description else None

    def is_of(self, model: str) -> bool:
        """Whether `model` is its id, the model's name, or the end of its path."""
        parts = Path(model).parts
        if not parts:
            return False
        return model in (self.id, self.model) or Path(self.path).parts[-len(parts) :] == parts


def parse_description(data: bytes, id: str) -> NamespaceDescription | None:
    """Parse `data`; None unless it is valid and of the namespace with this id."""
    try:
        # Not msgspec's decoder: a path that is no UTF-8 has lone surrogates.
        description = msgspec.convert(json.loads(data), NamespaceDescription)
        is_valid = isfinite(description.created) and namespace_id(description.namespace) == id
        return description if is_valid else None
    except (RecursionError, ValueError):
        return None


def _hub_name(path: str) -> str:
    """Return "org/name" for ".../models--org--name/snapshots/<commit>", else ""."""
    parts = Path(path).parts
    if parts[-2:-1] != ("snapshots",) or not parts[-3].startswith(_HUB_PREFIX):
        return ""
    return parts[-3].removeprefix(_HUB_PREFIX).replace("--", "/")


class StoredFile(NamedTuple):
    """`mtime` is the block's last use, in seconds since 1970."""

    name: Name
    nbytes: int
    mtime: float

    @property
    def entry(self) -> ColdEntry:
        return ColdEntry(self.name.block_key, self.name.namespace, self.nbytes)


class Files:
    """A Medium in a directory, which the first write makes. Unless `writable`, `delete` and
    `touch` do nothing and other changes raise MediumError."""

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
        self._disk = Disk(operations or FileOperations(), min_free_bytes, clock)

    def get(self, name: Name) -> bytes | None:
        with as_medium_errors(READ_REASONS):
            return self._disk.read(self._path(name), self._max_bytes)

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        self._require_writable()
        path = self._path(name)
        nbytes = nbytes_of(parts)
        require_fits(nbytes, self._max_bytes)
        with as_medium_errors(WRITE_REASONS):
            self._disk.refuse_if_full(self._root, nbytes)
            self._disk.write(path, parts)

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        with as_medium_errors(READ_REASONS):
            return {name for name in names if self._disk.is_file(self._path(name))}

    def delete(self, name: Name) -> None:
        path = self._path(name)
        if self.writable:
            with as_medium_errors(WRITE_REASONS):
                self._disk.remove(path)

    def close(self) -> None: ...

    def scan(
        self, namespace: str | None = None, on_error: Callable[[MediumError], None] | None = None
    ) -> Iterator[StoredFile]:
        """Yield all blocks, or one namespace's. Without `on_error` the first error raises."""
        for id in _list_or_report(partial(self._namespaces, namespace), on_error):
            for shard in _list_or_report(partial(self._shards, id), on_error):
                yield from _list_or_report(partial(self._blocks, id, shard), on_error)

    def record(self, name: Name) -> Record | None:
        """Return the unverified record in a block's header, or None."""
        with as_medium_errors(READ_REASONS):
            head = self._disk.read(self._path(name), self._max_bytes, first=_HEADER_BYTES)
        record = read_record(head) if head is not None else None
        return record if record is not None and record.key == name.block_key else None

    def touch(self, name: Name, now: float) -> None:
        """Set a block's last use, in seconds since 1970."""
        path = self._path(name)
        if self.writable:
            with as_medium_errors(WRITE_REASONS):
                self._disk.touch(path, now)

    def keep_free(self, nbytes: int) -> None:
        self._disk.min_free_bytes = nbytes

    def free_bytes(self) -> int:
        with as_medium_errors(READ_REASONS):
            return self._disk.free_bytes(self._root)

    def remove_leftovers(self) -> None:
        if self.writable:
            with as_medium_errors(WRITE_REASONS):
                for directory in list(self._all_directories()):
                    self._disk.remove_leftovers(directory)

    def describe(self, id: str) -> NamespaceDescription | None:
        """Return a namespace's description; None if it is missing or damaged."""
        if not _NAMESPACE.fullmatch(id):
            return None
        try:
            data = self._disk.read(self._root / id / _DESCRIPTION, _SMALL_MAX_BYTES)
        except (OSError, MediumError):
            return None
        return None if data is None else parse_description(data, id)

    def read_small(self, name: str) -> bytes | None:
        """Return a small file below the root, or None."""
        with as_medium_errors(READ_REASONS):
            content = self._disk.read(self._root / name, _SMALL_MAX_BYTES)
        if content is not None:
            self._disk.kept.setdefault(self._root / name, content)
        return content

    def write_small(self, name: str, content: bytes) -> None:
        """Write a small file, again if somebody removes the directory."""
        self._require_writable()
        self._disk.kept[self._root / name] = content
        with as_medium_errors(WRITE_REASONS):
            self._disk.write(self._root / name, [content])

    def remember_secret(self, content: bytes) -> None:
        self._disk.kept[self._root / SECRET] = content

    def write_description(self, description: NamespaceDescription) -> None:
        """Write a namespace's description, unless there is one with the model's path."""
        self._require_writable()
        id = namespace_id(description.namespace)
        stored = self.describe(id)
        if stored is None or (description.path and not stored.path):
            text = json.dumps(asdict(description), indent=2) + "\n"
            self.write_small(f"{id}/{_DESCRIPTION}", text.encode())
        else:
            self.read_small(f"{id}/{_DESCRIPTION}")  # keeps it, to write it again

    def uses(self) -> list[NamespaceUse]:
        uses = []
        for id in sorted(self._namespaces()):
            blocks = list(self.scan(id))
            nbytes = sum(block.nbytes for block in blocks)
            last_used = max((block.mtime for block in blocks), default=None)
            uses.append(NamespaceUse(id, len(blocks), nbytes, last_used, self.describe(id)))
        return uses

    def clear(self, namespace: str | None = None) -> list[StoredFile]:
        """Remove all blocks, or one namespace's, and empty directories; return the blocks."""
        self._require_writable()
        self.remove_leftovers()
        removed: list[StoredFile] = []
        with as_medium_errors(WRITE_REASONS):
            for id in self._namespaces(namespace):
                removed += self._clear_namespace(id)
        return removed

    def _path(self, name: Name) -> Path:
        if not (_NAMESPACE.fullmatch(name.namespace) and _KEY.fullmatch(name.key)):
            raise MediumError("io", "not the name of a block")
        return self._root / name.namespace / name.key[:2] / f"{name.key}.safetensors"

    def _require_writable(self) -> None:
        if not self.writable:
            raise MediumError("read-only", "another process writes to this directory")

    def _namespaces(self, only: str | None = None) -> list[str]:
        with as_medium_errors(READ_REASONS):
            ids = self._disk.directories(self._root, _NAMESPACE)
        return [id for id in ids if only in (None, id)]

    def _shards(self, id: str) -> list[str]:
        with as_medium_errors(READ_REASONS):
            return self._disk.directories(self._root / id, _SHARD)

    def _all_directories(self) -> Iterator[Path]:
        yield self._root
        for id in self._namespaces():
            yield self._root / id
            for shard in self._shards(id):
                yield self._root / id / shard

    def _blocks(self, id: str, shard: str) -> list[StoredFile]:
        blocks = []
        with as_medium_errors(READ_REASONS):
            for name, status in self._disk.files(self._root / id / shard):
                match = _BLOCK.fullmatch(name)
                if match and name.startswith(shard):
                    blocks.append(StoredFile(Name(id, match[1]), status.st_size, status.st_mtime))
        return blocks

    def _clear_namespace(self, id: str) -> list[StoredFile]:
        removed = []
        directory = self._root / id
        for shard in self._shards(id):
            for block in self._blocks(id, shard):
                self._disk.remove(self._path(block.name))
                removed.append(block)
            self._disk.remove_if_empty(directory / shard)
        if self._disk.is_file(directory / _DESCRIPTION):
            self._disk.remove(directory / _DESCRIPTION)
        self._disk.remove_if_empty(directory)
        return removed


def _list_or_report(
    list_entries: Callable[[], list[T]], on_error: Callable[[MediumError], None] | None
) -> list[T]:
    try:
        return list_entries()
    except MediumError as error:
        if on_error is None:
            raise
        on_error(error)
        return []
