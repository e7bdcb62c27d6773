"""One prefix as one verified file, for another directory or another machine with the same model.

A plain tar, so that people can look inside:

    manifest.json                              whose blocks these are, and all members that follow
    blocks/<6 digits>-<64 hex>.safetensors     a block as `store.format` has it, by number and key
    ...                                        parents first, recurrent states last

Keys in an archive are those of nobody's salt: it says nothing of the salt under which its blocks
were kept, and whoever takes them in hangs them on a root of their own.

The same blocks give the same bytes, and an archive is right if each of its bytes is the one that we
would write. So there are no links, paths or padding to be tricked by. The key of its digests is
public: they prove that nothing was damaged on the way, not who has made it. Content decides what a
model answers, so take in only what comes from people whom you trust.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.record import Packed, Part, Record
from omlx_server.store.archives.tar import BadArchive, TarReader, TarWriter, nbytes_of, size_of_tar
from omlx_server.store.format import MAX_TOKENS, Corrupt, decode, encode
from omlx_server.store.mediums.medium import Buffer, Name

ARCHIVE_VERSION = 1

_KEY = b"omlx archive"
_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 4 << 20  # of about 50,000 blocks, which six digits can number
_MAX_BLOCK_BYTES = 1 << 30
_MAX_NUMBER = 1 << 48

_ANY_FRONT = b'{\n "format": "omlx archive '
_FRONT = _ANY_FRONT + f'{ARCHIVE_VERSION}",\n "digest": "'.encode()
_DIGEST = slice(len(_FRONT), len(_FRONT) + 64)
_NO_DIGEST = "0" * 64

_WRONG = {
    "version": "is of another format version",
    "key": "is not the one that its name says",
    "namespace": "is of another model",
}


@dataclass(frozen=True, slots=True)
class About:
    """Whose blocks an archive holds: `namespace` is their model and KV format, `model` what people
    call it; `created` in seconds since 1970."""

    namespace: str
    model: str
    block_size: int
    created: int

    @property
    def root(self) -> BlockKey:
        """The key on which the chains of an archive hang."""
        return root_key(self.namespace, b"")


@dataclass(frozen=True, slots=True)
class Member:
    """A block or state to be written. `nbytes` is the size of its file in `store.format`, which
    does not depend on the salt; `load` is called when its turn has come."""

    record: Record
    nbytes: int
    load: Callable[[], Packed]

    @classmethod
    def of(cls, record: Record, packed: Packed) -> "Member":
        """Of what is in memory anyway."""
        return cls(record, nbytes_of(encode(record, packed, _KEY)), lambda: packed)


def write_archive(out: BinaryIO, about: About, members: Sequence[Member]) -> int:
    """Write blocks of one root, parents first and states last. Holds one block at a time; returns
    how many bytes were written.

    Raises:
        ValueError: they are no prefix of `about`, or a block is not of the size that was said.
    """
    written = 0
    for part in archive_parts(about, members):
        out.write(part)
        written += nbytes_of([part])
    return written


def archive_parts(about: About, members: Sequence[Member]) -> Iterator[Buffer]:
    """The same, to be written one behind the other. What is wrong with the blocks as a whole is
    raised at once, before the first part is asked for."""
    manifest, records = _planned(about, members)
    return _parts(manifest, records, members)


def read_archive(source: BinaryIO, *, max_bytes: int) -> "Archive":
    """An archive of at most `max_bytes`. Its manifest is read and checked here, its blocks one by
    one as they are asked for.

    Raises:
        BadArchive: as does going through it, whatever is wrong with it.
    """
    tar = TarReader(source, max_bytes)
    manifest = _Manifest.of(tar.first(_MANIFEST, min(_MAX_MANIFEST_BYTES, max_bytes)))
    if manifest.archive_bytes > max_bytes:
        raise BadArchive(
            f"it has {manifest.archive_bytes} bytes, and at most {max_bytes} are taken"
        )
    return Archive(tar, manifest)


def _parts(
    manifest: "_Manifest", records: Sequence[Record], members: Sequence[Member]
) -> Iterator[Buffer]:
    tar = TarWriter()
    yield from tar.add(_MANIFEST, [manifest.to_bytes()])
    for number, (record, member) in enumerate(zip(records, members, strict=True)):
        parts = encode(record, member.load(), _KEY)
        if nbytes_of(parts) != member.nbytes:
            raise ValueError("a block is not of the size that was said")
        yield from tar.add(_name(number, record.key), parts)
    yield from tar.end()


class Archive:
    """What `read_archive` found. Goes by once; only who has come to the end knows that all of it is
    right."""

    def __init__(self, tar: TarReader, manifest: "_Manifest") -> None:
        self._tar = tar
        self._manifest = manifest
        self.about = manifest.about
        self.sizes: Mapping[BlockKey, int] = manifest.sizes
        self.tokens = manifest.tokens
        self.blocks = manifest.blocks
        self.states = manifest.states

    @property
    def nbytes(self) -> int:
        """The size of the whole archive."""
        return self._manifest.archive_bytes

    def __iter__(self) -> Iterator[tuple[Record, Packed]]:
        """Blocks and then states, parents first, as they hang on `about.root`."""
        prefix = _Prefix(self.about)
        for number, (key, nbytes) in enumerate(self.sizes.items()):
            record, packed = self._member(number, key, nbytes)
            prefix.add(record)
            yield record, packed
        if (prefix.tokens, prefix.blocks, prefix.states) != (self.tokens, self.blocks, self.states):
            raise BadArchive("its manifest counts other blocks than there are")
        self._tar.end()

    def _member(self, number: int, key: BlockKey, nbytes: int) -> tuple[Record, Packed]:
        data = self._tar.next(_name(number, key), nbytes)
        try:
            return decode(data, _KEY, Name.of(namespace_id(self.about.namespace), key))
        except Corrupt as error:
            what = _WRONG.get(error.reason, f"is damaged ({error.reason})")
            raise BadArchive(f"block {number} {what}") from None


class Rerooting:
    """Takes blocks from one root to another, as they come by."""

    def __init__(self, old: BlockKey, new: BlockKey) -> None:
        self._new_keys = {old: new}

    def moved(self, record: Record) -> Record:
        """The same tokens, following the same as before. Raises ValueError for a record that comes
        before its parent."""
        parent = self._new_keys.get(record.parent)
        if parent is None:
            raise ValueError("a block does not follow those before it")
        moved = replace(record, parent=parent)
        if record.part is Part.BLOCK:
            self._new_keys[record.key] = moved.key
        return moved


def reroot(records: Iterable[Record], old: BlockKey, new: BlockKey) -> list[Record]:
    """Records that hang on one root, parents first, as they hang on another."""
    rerooting = Rerooting(old, new)
    return [rerooting.moved(record) for record in records]


# --- The manifest --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Manifest:
    """`sizes` of all files by key, in order; `tokens` is how many the blocks cover."""

    about: About
    tokens: int
    blocks: int
    states: int
    sizes: Mapping[BlockKey, int]

    @classmethod
    def of(cls, data: bytes) -> "_Manifest":
        """What the bytes say. Raises BadArchive unless they are those that we would write."""
        if not data.startswith(_FRONT):
            if data.startswith(_ANY_FRONT):
                raise BadArchive(
                    "it was written by another version of omlx-server, in another archive format"
                )
            raise BadArchive("its manifest is damaged")
        try:
            manifest = cls._parsed(json.loads(data))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise BadArchive("its manifest is damaged") from None
        if manifest.to_bytes() != data:
            raise BadArchive("its manifest is damaged")
        if not manifest.sizes:
            raise BadArchive("there is nothing in it")
        return manifest

    @classmethod
    def _parsed(cls, fields: Any) -> "_Manifest":
        return cls(
            about=About(
                _text(fields["namespace"]),
                _text(fields["model"]),
                _number(fields["block_size"], MAX_TOKENS),
                _number(fields["created"]),
            ),
            tokens=_number(fields["tokens"]),
            blocks=_number(fields["blocks"]),
            states=_number(fields["states"]),
            sizes={
                _key(text): _number(nbytes, _MAX_BLOCK_BYTES)
                for text, nbytes in fields["members"].items()
            },
        )

    def to_bytes(self) -> bytes:
        blank = self._text().encode()
        digest = hashlib.blake2b(blank, key=_KEY, digest_size=32).hexdigest().encode()
        return blank[: _DIGEST.start] + digest + blank[_DIGEST.stop :]

    def _text(self) -> str:
        fields = {
            "format": f"omlx archive {ARCHIVE_VERSION}",
            "digest": _NO_DIGEST,
            "namespace": self.about.namespace,
            "model": self.about.model,
            "block_size": self.about.block_size,
            "created": self.about.created,
            "tokens": self.tokens,
            "blocks": self.blocks,
            "states": self.states,
            "members": {key.hex(): nbytes for key, nbytes in self.sizes.items()},
        }
        return json.dumps(fields, indent=1) + "\n"

    @property
    def archive_bytes(self) -> int:
        """The size of the whole archive."""
        return size_of_tar([len(self.to_bytes()), *self.sizes.values()])


class _Prefix:
    """Follows the blocks of an archive, and sees to it that they hang together, each behind a full
    one or the root."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._stops = {about.root: 0}  # where what follows a full block begins
        self.tokens = 0
        self.blocks = 0
        self.states = 0

    def add(self, record: Record) -> None:
        """Raises BadArchive."""
        size = self._about.block_size
        if record.namespace != self._about.namespace:
            raise BadArchive(f"the block at token {record.start} is of another model")
        follows = self._stops.get(record.parent) == record.start
        if not follows or not 0 < len(record.tokens) <= size:
            raise BadArchive(f"the block at token {record.start} does not follow those before it")
        if record.part is Part.STATE:
            self._add_state(record)
        else:
            self._add_block(record)

    def _add_block(self, record: Record) -> None:
        if self.states or record.worth:
            raise BadArchive(f"the block at token {record.start} is out of place")
        self.blocks += 1
        self.tokens = max(self.tokens, record.stop)
        if len(record.tokens) == self._about.block_size:
            self._stops[record.key] = record.stop

    def _add_state(self, record: Record) -> None:
        if record.stop > self.tokens or record.worth not in tuple(Worth):
            raise BadArchive(f"the state at token {record.stop} is out of place")
        self.states += 1


def _planned(about: About, members: Sequence[Member]) -> tuple[_Manifest, list[Record]]:
    if not members:
        raise ValueError("an archive of nothing")
    records = reroot([m.record for m in members], members[0].record.parent, about.root)
    sizes = {r.key: m.nbytes for r, m in zip(records, members, strict=True)}
    if len(sizes) < len(members):
        raise ValueError("a block comes twice")
    prefix = _Prefix(about)
    try:
        for record in records:
            prefix.add(record)
        manifest = _Manifest(about, prefix.tokens, prefix.blocks, prefix.states, sizes)
        if len(manifest.to_bytes()) > _MAX_MANIFEST_BYTES:
            raise BadArchive("too many blocks for one archive")
        _Manifest.of(manifest.to_bytes())
    except BadArchive as error:
        raise ValueError(f"such an archive could not be read back: {error}") from error
    return manifest, records


def _name(number: int, key: BlockKey) -> str:
    return f"blocks/{number:06}-{key.hex()}.safetensors"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    value.encode()  # half a surrogate pair has no bytes, so no id
    return value


def _key(text: str) -> BlockKey:
    key = bytes.fromhex(text)
    if len(key) != 32:
        raise ValueError("not a key")
    return BlockKey(key)


def _number(value: object, limit: int = _MAX_NUMBER) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError("not a number of ours")
    return value
