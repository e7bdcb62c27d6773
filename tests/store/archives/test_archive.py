"""An archive gives back what was put in, under any root; or it is said to be bad. Nothing else."""

import gzip
import hashlib
import io
import itertools
import json
import random
import tarfile
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.blocks.keys import BlockKey, block_key, root_key
from omlx_server.core.blocks.record import PackedArrays, Record, RecordKind, RecordTensor
from omlx_server.store.archives import archive as archive_format
from omlx_server.store.archives.archive import (
    ArchiveMember,
    ArchiveOrigin,
    Rerooting,
    read_archive,
    write_archive,
)
from omlx_server.store.archives.tar import BadArchive
from omlx_server.store.block_file import encode
from omlx_server.store.mediums.medium import nbytes_of

SPACE = "fingerprint|v1:kv,kv|4"
ABOUT = ArchiveOrigin(SPACE, "org/tiny", 4, 1_700_000_000)
SALT = b"the salt of a tenant"
KEY = archive_format._KEY
LIMIT = 1 << 40
Blocks = list[tuple[Record, PackedArrays]]


def packed(seed: int = 0, nbytes: int = 24) -> PackedArrays:
    data = random.Random(seed).randbytes(nbytes)
    return PackedArrays([RecordTensor("F32", (1, nbytes // 4), data)], (((0, 0),),))


def prefix(
    tokens: int = 10, *, salt: bytes = SALT, states: Sequence[int] = (), size: int = 4
) -> Blocks:
    """Blocks of 4 tokens, a short one where it does not come out even, and states after some."""
    root, parents = root_key(SPACE, salt), []
    blocks: Blocks = []
    for start in range(0, tokens, size):
        parents.append(blocks[-1][0].key if blocks else root)
        own = tuple(range(start, min(start + size, tokens)))
        blocks.append((Record(SPACE, parents[-1], start, own), packed(start)))
    for stop in states:
        start = (stop - 1) // size * size
        parent, own = parents[start // size], tuple(range(start, stop))
        blocks.append(
            (Record(SPACE, parent, start, own, RecordKind.CHECKPOINT, 2), packed(1000 + stop))
        )
    return blocks


def reroot(records: Sequence[Record], old: BlockKey, new: BlockKey) -> list[Record]:
    rerooting = Rerooting(old, new)
    return [rerooting.moved(record) for record in records]


def archive_of(blocks: Blocks, about: ArchiveOrigin = ABOUT) -> bytes:
    out = io.BytesIO()
    written = write_archive(out, about, [ArchiveMember.of(record, held) for record, held in blocks])
    assert written == len(out.getvalue())
    return out.getvalue()


def read(data: bytes, max_bytes: int = LIMIT) -> tuple[ArchiveOrigin, Blocks]:
    archive = read_archive(io.BytesIO(data), max_bytes=max_bytes)
    blocks = list(archive)
    assert archive.manifest.archive_bytes == len(data)
    return archive.manifest.about, blocks


def problem(data: bytes, max_bytes: int = LIMIT) -> str:
    with pytest.raises(BadArchive) as caught:
        read(data, max_bytes)
    return str(caught.value)


def contents(blocks: Blocks) -> list[tuple[object, ...]]:
    return [
        (
            *(r.namespace, r.start, r.tokens, r.part, r.worth, p.places),
            *((t.dtype, t.shape, bytes(t.data)) for t in p.tensors),
        )
        for r, p in blocks
    ]


def members(data: bytes) -> list[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]


def packed_up(files: Sequence[tuple[str, bytes]]) -> bytes:
    """A tar as ours of any files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o600
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def signed(fields: dict[str, object]) -> bytes:
    """A manifest that says anything, with the digest that makes it right."""
    blank = json.dumps({**fields, "digest": "0" * 64}, indent=1) + "\n"
    at = archive_format._DIGEST
    digest = hashlib.blake2b(blank.encode(), key=KEY, digest_size=32).hexdigest()
    return (blank[: at.start] + digest + blank[at.stop :]).encode()


def with_manifest(data: bytes, **changes: object) -> bytes:
    (name, manifest), *rest = members(data)
    return packed_up([(name, signed({**json.loads(manifest), **changes})), *rest])


def forged(blocks: Blocks, **changes: object) -> bytes:
    """An archive of blocks as they are, whatever they are, by somebody who knows the format."""
    files = [b"".join(encode(record, held, KEY)) for record, held in blocks]
    manifest: dict[str, object] = {
        "format": "omlx archive 1",
        "digest": "",
        "namespace": SPACE,
        "model": "org/tiny",
        "block_size": 4,
        "created": 1,
        "tokens": max(record.stop for record, _ in blocks),
        "blocks": sum(record.part is RecordKind.BLOCK for record, _ in blocks),
        "states": sum(record.part is RecordKind.CHECKPOINT for record, _ in blocks),
        "members": {r.key.hex(): len(f) for (r, _), f in zip(blocks, files, strict=True)},
    }
    names = [
        f"blocks/{i:06}-{record.key.hex()}.safetensors" for i, (record, _) in enumerate(blocks)
    ]
    content = zip(names, files, strict=True)
    return packed_up([("manifest.json", signed({**manifest, **changes})), *content])


@pytest.fixture(scope="module")
def data() -> bytes:
    return archive_of(prefix(10, states=(4, 10)))


# What goes in comes out


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.sets(st.integers(1, 40), max_size=4),
    st.binary(max_size=40),
    st.integers(1, 9),
)
def test_what_was_written_comes_back(tokens: int, states: set[int], salt: bytes, size: int) -> None:
    stops = sorted(stop for stop in states if stop <= tokens)
    blocks = prefix(tokens, salt=salt, states=stops, size=size)
    about, found = read(archive_of(blocks, replace(ABOUT, block_size=size)))
    assert about == replace(ABOUT, block_size=size)
    assert contents(found) == contents(blocks)
    own = prefix(tokens, salt=b"", states=stops, size=size)
    assert [record for record, _ in found] == [record for record, _ in own]


def test_the_manifest_says_what_it_is(data: bytes) -> None:
    archive = read_archive(io.BytesIO(data), max_bytes=LIMIT)
    told = archive.manifest
    assert (told.tokens, told.blocks, told.checkpoints) == (10, 3, 2)
    names = [name for name, _ in members(data)]
    assert names[0] == "manifest.json"
    manifest = json.loads(members(data)[0][1])
    assert manifest["format"] == "omlx archive 1"
    assert manifest["model"] == "org/tiny"
    assert list(manifest["members"]) == [name[14:78] for name in names[1:]]
    assert list(manifest["members"].values()) == [len(file) for _, file in members(data)[1:]]
    sizes = {key.hex(): size for key, size in archive.manifest.sizes.items()}
    assert sizes == manifest["members"]


def test_the_same_blocks_give_the_same_bytes_whatever_their_salt(data: bytes) -> None:
    assert archive_of(prefix(10, states=(4, 10))) == data
    assert archive_of(prefix(10, salt=b"another", states=(4, 10))) == data
    assert archive_of(prefix(10, salt=b"", states=(4, 10))) == data


def test_nothing_of_the_salt_is_in_it(data: bytes) -> None:
    salted, plain = prefix(10, states=(4, 10)), prefix(10, salt=b"", states=(4, 10))
    for (record, _), (own, _) in zip(salted, plain, strict=True):
        for key in (bytes(record.key), bytes(record.parent)):
            assert data.find(key) == data.find(key.hex().encode()) == -1
        assert own.key.hex().encode() in data


def test_blocks_are_loaded_one_by_one_in_their_turn() -> None:
    blocks = prefix(8)
    loaded: list[int] = []

    def load(number: int) -> PackedArrays:
        assert loaded == list(range(number))
        loaded.append(number)
        return blocks[number][1]

    lazy = [
        replace(ArchiveMember.of(record, held), load=partial(load, number))
        for number, (record, held) in enumerate(blocks)
    ]
    out = io.BytesIO()
    write_archive(out, ABOUT, lazy)
    assert out.getvalue() == archive_of(blocks)
    assert loaded == [0, 1]


def test_the_size_of_a_member_does_not_depend_on_the_salt() -> None:
    pairs = zip(prefix(6, salt=b"1"), prefix(6, salt=b"22"), strict=True)
    assert all(
        ArchiveMember.of(*one).nbytes == ArchiveMember.of(*other).nbytes for one, other in pairs
    )


def test_several_ends_of_one_beginning_can_travel_together() -> None:
    blocks = prefix(8)
    other = Record(SPACE, blocks[0][0].key, 4, (9, 9))
    _, found = read(archive_of([*blocks, (other, packed(9))]))
    assert [record.tokens for record, _ in found] == [(0, 1, 2, 3), (4, 5, 6, 7), (9, 9)]


def test_the_format_is_the_same_on_every_machine() -> None:
    """A change of this needs another version."""
    data = archive_of(prefix(6, states=(5,)))
    assert archive_format.ARCHIVE_VERSION == 1
    digest = hashlib.sha256(data).hexdigest()
    assert (len(data), digest[:16]) == (10240, "76361ccfb2c2b350")


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        prefix(8)[1:],
        prefix(8)[::-1],
        prefix(4) * 2,
        [*prefix(2), (replace(prefix(8)[1][0], parent=prefix(2)[0][0].key), packed())],
        [*prefix(4, states=(4,)), *prefix(8)[1:]],
        [(replace(prefix(4)[0][0], namespace="another"), packed())],
        [(replace(prefix(4)[0][0], tokens=()), packed())],
        [(replace(prefix(4)[0][0], tokens=(1, 2, 3, 4, 5)), packed())],
        [(replace(prefix(4)[0][0], worth=1), packed())],
        [*prefix(4), (replace(prefix(4, states=(4,))[1][0], worth=9), packed())],
        [*prefix(2), (prefix(4, states=(4,))[1][0], packed())],
    ],
)
def test_what_is_no_prefix_is_not_written(blocks: Blocks) -> None:
    with pytest.raises(ValueError):
        archive_of(blocks)


def test_a_wrong_size_is_noticed_when_it_is_written() -> None:
    record, held = prefix(4)[0]
    for wrong in (-1, 1):
        member = replace(
            ArchiveMember.of(record, held), nbytes=ArchiveMember.of(record, held).nbytes + wrong
        )
        with pytest.raises(ValueError):
            write_archive(io.BytesIO(), ABOUT, [member])


# Other roots


@st.composite
def trees(draw: st.DrawFn) -> list[Record]:
    """Blocks and states that hang on one root, parents first. Few tokens, so many are alike."""
    root = root_key(SPACE, SALT)
    heads: list[tuple[BlockKey, int]] = [(root, 0)]
    records: dict[BlockKey, Record] = {}
    for _ in range(draw(st.integers(0, 12))):
        parent, start = draw(st.sampled_from(heads))
        tokens = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=2)))
        part = draw(st.sampled_from(RecordKind))
        record = Record(SPACE, parent, start, tokens, part, draw(st.integers(0, 3)))
        if record.key not in records:
            records[record.key] = record
            if part is RecordKind.BLOCK:
                heads.append((record.key, record.stop))
    return list(records.values())


@settings(deadline=None)
@given(trees(), st.binary(max_size=4), st.binary(max_size=4))
def test_another_root_changes_keys_and_nothing_else(
    records: list[Record], one: bytes, two: bytes
) -> None:
    old, new, third = (root_key(SPACE, salt) for salt in (SALT, one, two))
    moved = reroot(records, old, new)
    for before, after in zip(records, moved, strict=True):
        assert replace(after, parent=before.parent) == before
    # What hangs on what stays, and only what hung on the root hangs on the new one.
    place = {record.key: number for number, record in enumerate(records)}
    new_place = {record.key: number for number, record in enumerate(moved)}
    assert [place.get(r.parent) for r in records] == [new_place.get(r.parent) for r in moved]
    assert all(after.parent == new for after in moved if after.start == 0)
    assert reroot(moved, new, old) == records
    assert reroot(moved, new, third) == reroot(records, old, third)
    assert reroot(records, old, old) == records


@settings(deadline=None)
@given(trees())
def test_keys_on_the_new_root_are_those_that_its_own_tokens_give(records: list[Record]) -> None:
    new = root_key(SPACE, b"new")
    paths: dict[BlockKey, list[tuple[int, ...]]] = {root_key(SPACE, SALT): []}
    for before, after in zip(records, reroot(records, root_key(SPACE, SALT), new), strict=True):
        path = paths[before.parent]
        if before.part is RecordKind.BLOCK:
            paths[before.key] = [*path, before.tokens]
        assert after.parent == list(itertools.accumulate(path, block_key, initial=new))[-1]


def test_one_that_comes_before_its_parent_is_refused() -> None:
    records = [record for record, _ in prefix(8, states=(8,))]
    for wrong in (records[1:], records[::-1], [records[2]]):
        with pytest.raises(ValueError):
            reroot(wrong, root_key(SPACE, SALT), root_key(SPACE, b""))
    rerooting = Rerooting(root_key(SPACE, SALT), root_key(SPACE, b""))
    state = replace(records[0], part=RecordKind.CHECKPOINT)
    rerooting.moved(state)
    with pytest.raises(ValueError):
        rerooting.moved(Record(SPACE, state.key, 4, (1,)))


# What is not as it was written


def test_every_flipped_bit_is_found(data: bytes) -> None:
    """One bit of every byte, and all eight of those that say most."""
    rng = random.Random(5)
    for at in range(len(data)):
        bits = range(8) if at % 512 in (0, 124, 134, 148, 156, 257) else [rng.randrange(8)]
        for bit in bits:
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            problem(bytes(flipped))


def test_every_truncation_is_found(data: bytes) -> None:
    for length in [*range(0, len(data), 7), len(data) - 1]:
        problem(data[:length])
    assert "ends after 600 bytes" in problem(data[:600])


@settings(deadline=None)
@given(st.integers(0, 30_000), st.binary(min_size=1, max_size=600))
def test_any_other_bytes_in_it_are_found(at: int, other: bytes) -> None:
    data = archive_of(prefix(10, states=(4, 10)))
    at = min(at, len(data) - 1)
    changed = data[:at] + other + data[at + len(other) :]
    if changed != data:
        problem(changed)


@pytest.mark.parametrize("junk", [b"\0", b"x", b"\0" * 512, b"\0" * 10240])
def test_nothing_may_follow(data: bytes, junk: bytes) -> None:
    assert problem(data + junk) == "something follows behind its end"


def test_two_archives_are_none(data: bytes) -> None:
    assert problem(data + data) == "something follows behind its end"


def test_members_must_be_those_of_the_manifest_in_their_order(data: bytes) -> None:
    first, *blocks = members(data)
    for other in (blocks[::-1], blocks[1:], blocks[:-1], [*blocks, blocks[0]], []):
        problem(packed_up([first, *other]))
    problem(packed_up([*blocks, first]))
    problem(packed_up(blocks))
    assert packed_up([first, *blocks]) == data


def test_content_of_another_member_is_found(data: bytes) -> None:
    first, one, two, *rest = members(data)
    swapped = [(one[0], two[1]), (two[0], one[1])]
    message = problem(packed_up([first, *swapped, *rest]))
    assert message == "block 0 is not the one that its name says"


def test_a_block_of_another_archive_is_found(data: bytes) -> None:
    """Whole, well signed, and of the same size."""
    blocks = prefix(10, salt=b"", states=(4, 10))
    other = [(replace(r, namespace=r.namespace.replace("f", "g")), p) for r, p in blocks]
    first, *ours = members(data)
    theirs = [b"".join(encode(record, held, KEY)) for record, held in other]
    mixed = [(name, theirs[i] if i == 1 else file) for i, (name, file) in enumerate(ours)]
    assert "is of another model" in problem(packed_up([first, *mixed]))


@pytest.mark.parametrize("pack", [gzip.compress, lambda data: b"PK\x03\x04" + data])
def test_compressed_archives_are_named_as_such(data: bytes, pack: object) -> None:
    assert callable(pack)
    assert "it is compressed (" in problem(pack(data))


@pytest.mark.parametrize(
    "foreign", [b"", b"x", b"\0" * 20_000, b"{}", b"\xff" * 512, b"a text\n" * 9000]
)
def test_foreign_files_are_no_archives(foreign: bytes) -> None:
    assert problem(foreign).startswith("it is not an archive of omlx-server")


def test_another_tar_is_no_archive() -> None:
    assert "not an archive" in problem(packed_up([("README", b"hello")]))
    assert "manifest is damaged" in problem(packed_up([("manifest.json", b"{}")]))


def test_an_archive_of_a_later_version_is_named_as_such(data: bytes) -> None:
    later = with_manifest(data, format="omlx archive 2")
    assert "another version of omlx-server" in problem(later)


def test_what_tar_programs_make_of_it_is_refused(data: bytes) -> None:
    """Other owners and times, or another flavour of tar: not the bytes that we would write."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:", format=form) as tar:
            for name, content in members(data):
                info = tarfile.TarInfo(name)
                info.size, info.mtime, info.uname = len(content), 1_700_000_000, "somebody"
                tar.addfile(info, io.BytesIO(content))
        problem(out.getvalue())


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_links_devices_and_folders_are_refused(data: bytes, kind: bytes, place: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.USTAR_FORMAT) as tar:
        for number, (name, content) in enumerate(members(data)):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o600
            if number == place:
                info.type, info.linkname, info.size = kind, "/etc/passwd", 0
            tar.addfile(info, io.BytesIO(content) if number != place else None)
    problem(out.getvalue())


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "blocks/../../x", "blocks/a", "x" * 99])
def test_paths_are_not_looked_at(data: bytes, name: str) -> None:
    first, (_, content), *rest = members(data)
    problem(packed_up([first, (name, content), *rest]))
    problem(packed_up([first, (name, content), *members(data)[1:]]))


# Manifests that somebody else might sign


HOSTILE: dict[str, dict[str, object]] = {
    "more tokens": {"tokens": 11},
    "other blocks": {"blocks": 2, "states": 3},
    "another model": {"namespace": "another|v1:kv,kv|4"},
    "namespace a number": {"namespace": 4},
    "namespace without bytes": {"namespace": "\ud800"},
    "model a list": {"model": ["org/tiny"]},
    "model missing": {"model": None},
    "block size 0": {"block_size": 0},
    "block size below 0": {"block_size": -4},
    "block size of another": {"block_size": 8},
    "block size true": {"block_size": True},
    "block size huge": {"block_size": 1 << 70},
    "block size a fraction": {"block_size": 4.0},
    "created never": {"created": None},
    "no members": {"members": {}},
    "members a list": {"members": []},
    "members a text": {"members": "x"},
    "member without key": {"members": {"": 1}},
    "member with a short key": {"members": {"00": 1}},
    "member with a long key": {"members": {"00" * 60: 1}},
    "member with spaces": {"members": {" " + "00" * 32: 1}},
    "member of no size": {"members": {"00" * 32: None}},
    "member below 0": {"members": {"00" * 32: -1}},
    "member of nothing": {"members": {"00" * 32: 0}},
    "member huge": {"members": {"00" * 32: 1 << 60}},
    "unknown field": {"more": 1},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_manifest_that_is_not_one_of_ours_is_refused(data: bytes, case: str) -> None:
    problem(with_manifest(data, **HOSTILE[case]))


def test_resigning_itself_changes_nothing(data: bytes) -> None:
    assert with_manifest(data) == data
    assert forged(prefix(10, salt=b"", states=(4, 10)), created=ABOUT.created) == data


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "[1,", "null", "[]", "9" * 200_000, '{"a":' * 60_000, "\ud800"]
)
def test_a_manifest_that_is_no_object_is_refused(data: bytes, text: str) -> None:
    front = archive_format._BEGINNING
    for manifest in (text.encode(errors="surrogatepass"), front + text.encode(errors="ignore")):
        problem(packed_up([("manifest.json", manifest), *members(data)[1:]]))


def _forgeries() -> Iterator[tuple[str, Blocks]]:
    """Well signed, but not hanging together."""
    good = prefix(10, salt=b"", states=(4, 10))
    (first, held), (second, _), (tail, _), (state, _), (last_state, _) = good
    yield "head missing", good[1:]
    yield "hole", [good[0], *good[2:]]
    yield "child first", [good[1], good[0], *good[2:]]
    yield "state before block", [good[0], good[3], *good[1:3], good[4]]
    yield "salted", prefix(10)
    yield "start moved", [(replace(first, start=4), held), *good[1:]]
    yield "start of the second moved", [good[0], (replace(second, start=8), held)]
    yield "behind a tail", [*good[:3], (Record(SPACE, tail.key, 10, (1,)), held)]
    yield "behind a state", [*good[:4], (Record(SPACE, state.key, 4, (1,)), held)]
    yield "too long", [(Record(SPACE, first.parent, 0, (1, 2, 3, 4, 5)), held)]
    yield "empty", [(Record(SPACE, first.parent, 0, ()), held)]
    yield "worth of a block", [(replace(first, worth=3), held)]
    yield "worth of no state", [*good[:3], (replace(last_state, worth=4), held)]
    yield (
        "state beyond the blocks",
        [good[0], (Record(SPACE, first.key, 4, (1,), RecordKind.CHECKPOINT), held)],
    )


@pytest.mark.parametrize("case", [name for name, _ in _forgeries()])
def test_blocks_that_do_not_hang_together_are_refused(case: str) -> None:
    problem(forged(dict(_forgeries())[case]))


# Sizes


class Endless(io.RawIOBase):
    """Begins as `start` does and never ends."""

    def __init__(self, start: bytes) -> None:
        self._start = io.BytesIO(start)

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "all of it was asked for"
        return self._start.read(size) or bytes(size)


def test_no_more_is_read_than_is_allowed(data: bytes) -> None:
    read(data, max_bytes=len(data))
    for limit in (0, 100, 512, 2000, len(data) - 1):
        message = problem(data, max_bytes=limit)
        assert str(limit) in message and "are taken" in message


def test_an_endless_archive_ends(data: bytes) -> None:
    source: BinaryIO = Endless(data)  # type: ignore[assignment]
    archive = read_archive(source, max_bytes=LIMIT)
    with pytest.raises(BadArchive):
        list(archive)


def test_a_size_that_is_not_true_takes_no_memory(data: bytes, tmp_path: Path) -> None:
    """A manifest and a header may say a gigabyte; what counts is what is there. A real file makes
    room for all that is asked of it."""
    (name, manifest), (block, content), *_ = members(data)
    fields = json.loads(manifest)
    fields["members"] = dict.fromkeys(fields["members"], (1 << 30) - 1)
    info = tarfile.TarInfo(block)
    info.size, info.mode = (1 << 30) - 1, 0o600
    tar = packed_up([(name, signed(fields))])
    start = tar[: 512 + len(signed(fields)) + -len(signed(fields)) % 512]
    path = tmp_path / "X"
    path.write_bytes(start + info.tobuf(tarfile.USTAR_FORMAT) + content)
    with path.open("rb") as source:
        tracemalloc.start()
        with pytest.raises(BadArchive, match="ends after"):
            list(read_archive(source, max_bytes=LIMIT))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_long_manifest_is_not_read(data: bytes) -> None:
    info = tarfile.TarInfo("manifest.json")
    info.size, info.mode = 1 << 32, 0o600
    tracemalloc.start()
    assert "at most" in problem(info.tobuf(tarfile.USTAR_FORMAT) + data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_hostile_manifest_is_refused_at_once() -> None:
    filler = b'"x": [' + b"[]," * 1_300_000
    tar = packed_up([("manifest.json", archive_format._BEGINNING + b"0" * 64 + b'",\n ' + filler)])
    assert "manifest is damaged" in problem(tar)


def test_what_comes_in_small_pieces_is_read_all_the_same(data: bytes) -> None:
    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 100))

    archive = read_archive(Dripping(data), max_bytes=LIMIT)
    assert contents(list(archive)) == contents(prefix(10, states=(4, 10)))
    assert nbytes_of([data]) == archive.manifest.archive_bytes
