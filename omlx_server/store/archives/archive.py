"""One prefix as one verified tar, for another directory or machine with the same model.

    manifest.json                              the model, and the size of each file that follows
    blocks/<6 digits>-<64 hex>.safetensors     a block as in `store.block_file`, by number and key
    ...                                        parents first, checkpoints last

Keys have no salt; an import computes its own. The digests' key is public: they show damage, not who
made the archive.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.record import PackedArrays, Record, RecordKind
from omlx_server.store.archives.tar import (
    BadArchive,
    TarReader,
    end_of_tar,
    size_of_tar,
    tar_member,
)
from omlx_server.store.block_file import MAX_TOKENS, Corrupt, decode, encode
from omlx_server.store.mediums.medium import Buffer, Name, nbytes_of

ARCHIVE_VERSION = 1

_KEY = b"omlx archive"
_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 4 << 20  # for about 50,000 blocks
_MAX_BLOCK_BYTES = 1 << 30

_Number = Annotated[int, Meta(ge=0, le=1 << 48)]
_Bytes = Annotated[int, Meta(ge=0, le=_MAX_BLOCK_BYTES)]
_Key = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

_BEGINNING_OF_ANY_VERSION = b'{\n "format": "omlx archive '
_BEGINNING = _BEGINNING_OF_ANY_VERSION + f'{ARCHIVE_VERSION}",\n "digest": "'.encode()
_DIGEST = slice(len(_BEGINNING), len(_BEGINNING) + 64)
_NO_DIGEST = "0" * 64

_PROBLEMS = {
    "version": "is of another format version",
    "key": "is not the one that its name says",
    "namespace": "is of another model",
}


@dataclass(frozen=True, slots=True)
class ArchiveOrigin:
    """`namespace` is the model's id and KV format; `created` in seconds since 1970."""

    namespace: str
    model: str
    block_size: int
    created: int

    @property
    def root(self) -> BlockKey:
        return root_key(self.namespace, b"")


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A block or checkpoint to write. `nbytes` is the size of its file."""

    record: Record
    nbytes: int
    load: Callable[[], PackedArrays]

    @classmethod
    def of(cls, record: Record, packed: PackedArrays) -> "ArchiveMember":
        return cls(record, nbytes_of(encode(record, packed, _KEY)), lambda: packed)


def write_archive(out: BinaryIO, about: ArchiveOrigin, members: Sequence[ArchiveMember]) -> int:
    """Write blocks, parents first, checkpoints last. Return the bytes. Raises ValueError."""
    written = 0
    for part in archive_parts(about, members):
        out.write(part)
        written += nbytes_of([part])
    return written


def archive_parts(about: ArchiveOrigin, members: Sequence[ArchiveMember]) -> Iterator[Buffer]:
    """Raises ValueError if the members make no archive, perhaps only at a block of a wrong size."""
    manifest, records = _plan_archive(about, members)
    return _encode_parts(manifest, records, members)


def read_archive(source: BinaryIO, *, max_bytes: int) -> "Archive":
    """Open an archive of at most `max_bytes`. Raises BadArchive, also during iteration."""
    tar = TarReader(source, max_bytes)
    manifest = Manifest.of(tar.read_first(_MANIFEST, min(_MAX_MANIFEST_BYTES, max_bytes)))
    if manifest.archive_bytes > max_bytes:
        raise BadArchive(
            f"it has {manifest.archive_bytes} bytes, and at most {max_bytes} are taken"
        )
    return Archive(tar, manifest)


def _encode_parts(
    manifest: "Manifest", records: Sequence[Record], members: Sequence[ArchiveMember]
) -> Iterator[Buffer]:
    head = manifest.to_bytes()
    yield from tar_member(_MANIFEST, [head])
    for number, (record, member) in enumerate(zip(records, members, strict=True)):
        parts = encode(record, member.load(), _KEY)
        if nbytes_of(parts) != member.nbytes:
            raise ValueError("a block is not of the size that was said")
        yield from tar_member(_member_name(number, record.key), parts)
    yield end_of_tar([len(head), *manifest.sizes.values()])


class Archive:
    """An archive that can be read once. Only its end proves that all is right."""

    def __init__(self, tar: TarReader, manifest: "Manifest") -> None:
        self._tar = tar
        self.manifest = manifest

    def __iter__(self) -> Iterator[tuple[Record, PackedArrays]]:
        """Yield blocks, parents first, then checkpoints. Raises BadArchive."""
        check, sizes = _PrefixCheck(self.manifest.about), self.manifest.sizes
        for number, (key, nbytes) in enumerate(sizes.items()):
            record, packed = self._read_member(number, key, nbytes)
            check.add(record)
            yield record, packed
        if check.manifest(sizes) != self.manifest:
            raise BadArchive("its manifest counts other blocks than there are")
        self._tar.require_end()

    def _read_member(self, number: int, key: BlockKey, nbytes: int) -> tuple[Record, PackedArrays]:
        data = self._tar.read_next(_member_name(number, key), nbytes)
        try:
            return decode(data, _KEY, Name.of(namespace_id(self.manifest.about.namespace), key))
        except Corrupt as error:
            problem = _PROBLEMS.get(error.reason, f"is damaged ({error.reason})")
            raise BadArchive(f"block {number} {problem}") from None


class Rerooting:
    """Moves the blocks of one root below another."""

    def __init__(self, old: BlockKey, new: BlockKey) -> None:
        self._new_keys = {old: new}

    def moved(self, record: Record) -> Record:
        """Return the record below the new root. Raises ValueError unless its parent came before."""
        parent = self._new_keys.get(record.parent)
        if parent is None:
            raise ValueError("a block does not follow those before it")
        moved = replace(record, parent=parent)
        if record.part is RecordKind.BLOCK:
            self._new_keys[record.key] = moved.key
        return moved


class _ManifestFields(msgspec.Struct):
    namespace: str
    model: str
    block_size: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    created: _Number
    tokens: _Number
    blocks: _Number
    states: _Number
    members: dict[_Key, _Bytes]


@dataclass(frozen=True, slots=True)
class Manifest:
    """`sizes` are the bytes of each file by key, in order."""

    about: ArchiveOrigin
    tokens: int
    blocks: int
    checkpoints: int
    sizes: Mapping[BlockKey, int]

    @classmethod
    def of(cls, data: bytes) -> "Manifest":
        """Raises BadArchive unless these are the bytes that we would write."""
        if not data.startswith(_BEGINNING):
            if data.startswith(_BEGINNING_OF_ANY_VERSION):
                raise BadArchive(
                    "it was written by another version of omlx-server, in another archive format"
                )
            raise BadArchive("its manifest is damaged")
        try:
            fields = msgspec.json.decode(data, type=_ManifestFields)
        except (RecursionError, ValueError):
            raise BadArchive("its manifest is damaged") from None
        manifest = cls(
            ArchiveOrigin(fields.namespace, fields.model, fields.block_size, fields.created),
            fields.tokens,
            fields.blocks,
            fields.states,
            {BlockKey(bytes.fromhex(key)): nbytes for key, nbytes in fields.members.items()},
        )
        if manifest.to_bytes() != data:
            raise BadArchive("its manifest is damaged")
        if not manifest.sizes:
            raise BadArchive("there is nothing in it")
        return manifest

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON, with its digest at a fixed place."""
        unsigned = self._unsigned_text().encode()
        digest = hashlib.blake2b(unsigned, key=_KEY, digest_size=32).hexdigest().encode()
        return unsigned[: _DIGEST.start] + digest + unsigned[_DIGEST.stop :]

    def _unsigned_text(self) -> str:
        fields = {
            "format": f"omlx archive {ARCHIVE_VERSION}",
            "digest": _NO_DIGEST,
            "namespace": self.about.namespace,
            "model": self.about.model,
            "block_size": self.about.block_size,
            "created": self.about.created,
            "tokens": self.tokens,
            "blocks": self.blocks,
            "states": self.checkpoints,
            "members": {key.hex(): nbytes for key, nbytes in self.sizes.items()},
        }
        return json.dumps(fields, indent=1) + "\n"

    @property
    def archive_bytes(self) -> int:
        return size_of_tar([len(self.to_bytes()), *self.sizes.values()])


class _PrefixCheck:
    """Checks that each block follows a full one or the root."""

    def __init__(self, about: ArchiveOrigin) -> None:
        self._about = about
        self._stops = {about.root: 0}  # the ends of the full blocks, by key
        self._tokens = self._blocks = self._checkpoints = 0

    def manifest(self, sizes: Mapping[BlockKey, int]) -> Manifest:
        return Manifest(self._about, self._tokens, self._blocks, self._checkpoints, sizes)

    def add(self, record: Record) -> None:
        size = self._about.block_size
        if record.namespace != self._about.namespace:
            raise BadArchive(f"the block at token {record.start} is of another model")
        follows = self._stops.get(record.parent) == record.start
        if not follows or not 0 < len(record.tokens) <= size:
            raise BadArchive(f"the block at token {record.start} does not follow those before it")
        if record.part is RecordKind.CHECKPOINT:
            self._add_checkpoint(record)
        else:
            self._add_block(record)

    def _add_block(self, record: Record) -> None:
        if self._checkpoints or record.worth:
            raise BadArchive(f"the block at token {record.start} is out of place")
        self._blocks += 1
        self._tokens = max(self._tokens, record.stop)
        if len(record.tokens) == self._about.block_size:
            self._stops[record.key] = record.stop

    def _add_checkpoint(self, record: Record) -> None:
        if record.stop > self._tokens or record.worth not in tuple(Worth):
            raise BadArchive(f"the state at token {record.stop} is out of place")
        self._checkpoints += 1


def _plan_archive(
    about: ArchiveOrigin, members: Sequence[ArchiveMember]
) -> tuple[Manifest, list[Record]]:
    if not members:
        raise ValueError("an archive of nothing")
    rerooting = Rerooting(members[0].record.parent, about.root)
    records = [rerooting.moved(member.record) for member in members]
    sizes = {r.key: m.nbytes for r, m in zip(records, members, strict=True)}
    if len(sizes) < len(members):
        raise ValueError("a block comes twice")
    check = _PrefixCheck(about)
    try:
        for record in records:
            check.add(record)
        manifest = check.manifest(sizes)
        if len(manifest.to_bytes()) > _MAX_MANIFEST_BYTES:
            raise BadArchive("too many blocks for one archive")
        Manifest.of(manifest.to_bytes())
    except BadArchive as error:
        raise ValueError(f"such an archive could not be read back: {error}") from error
    return manifest, records


def _member_name(number: int, key: BlockKey) -> str:
    return f"blocks/{number:06}-{key.hex()}.safetensors"
