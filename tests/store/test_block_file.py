"""A block's file says the same when it is read, or says that it is corrupt; and nothing else."""

import hashlib
import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest
import safetensors

from omlx_server.core.blocks.keys import namespace_id, root_key
from omlx_server.core.blocks.record import PackedArrays, Record, RecordKind, RecordTensor
from omlx_server.store import block_file
from omlx_server.store.block_file import Corrupt, decode, encode, read_record
from omlx_server.store.mediums.medium import Name

SECRET = bytes(range(32))
SPACE = "model|kv|4"
ROOT = root_key(SPACE, b"")
SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
SHAPES = [(), (1,), (3,), (0,), (2, 0, 3), (2, 3), (1, 2, 1, 3)]


def tensor(dtype: str, shape: tuple[int, ...], seed: int = 0) -> RecordTensor:
    count = SIZES[dtype]
    for axis in shape:
        count *= axis
    data = random.Random(f"{dtype}{shape}{seed}").randbytes(count)
    return RecordTensor(dtype, shape, bytes(byte & 1 for byte in data) if dtype == "BOOL" else data)


PLACES = (((0, 2), (1, 0)), ((1, 1),))
RECORD = Record(SPACE, ROOT, 8, (5, 0, 2**32 - 1, 7))
PACKED = PackedArrays([tensor("U8", (3,)), tensor("F32", (2, 2))], PLACES)


def name_of(record: Record) -> Name:
    return Name(namespace_id(record.namespace), record.key.hex())


def file_of(
    record: Record = RECORD, packed: PackedArrays = PACKED, secret: bytes = SECRET
) -> bytes:
    return b"".join(encode(record, packed, secret))


def contents(packed: PackedArrays) -> list[tuple[str, tuple[int, ...], bytes]]:
    return [(t.dtype, t.shape, bytes(t.data)) for t in packed.tensors]


def reason_of(data: bytes, expected: Name | None = None, secret: bytes = SECRET) -> str:
    with pytest.raises(Corrupt) as caught:
        decode(data, secret, expected)
    return caught.value.reason


def header_of(data: bytes) -> dict[str, dict[str, object]]:
    length = int.from_bytes(data[:8], "little")
    found: dict[str, dict[str, object]] = json.loads(data[8 : 8 + length])
    return found


def signed(header: str | bytes, body: bytes = b"") -> bytes:
    """A file with any header, with the digest that makes it ours."""
    text = header.encode() if isinstance(header, str) else header
    blank = len(text).to_bytes(8, "little") + text
    at = block_file._DIGEST
    blank = blank[: at.start] + b"0" * 64 + blank[at.stop :]
    digest = block_file._digest([blank, body], SECRET).encode()
    return blank[: at.start] + digest + blank[at.stop :] + body


def resigned(change: dict[str, object], body: bytes | None = None) -> bytes:
    """Our file with other entries in its header; those of the metadata by their own names."""
    data = file_of()
    header = header_of(data)
    for key, value in change.items():
        (header if key.isdigit() else header["__metadata__"])[key] = value  # type: ignore[assignment]
    text = json.dumps(header, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    own = data[8 + int.from_bytes(data[:8], "little") :]
    return signed(text, own if body is None else body)


# Round trips


@pytest.mark.parametrize("dtype", SIZES)
def test_all_types_and_shapes_come_back(dtype: str) -> None:
    packed = PackedArrays([tensor(dtype, shape) for shape in SHAPES], ())
    record, found = decode(file_of(RECORD, packed), SECRET, name_of(RECORD))
    assert record == RECORD
    assert contents(found) == contents(packed)


def test_everything_at_once_comes_back_in_its_order_aligned() -> None:
    tensors = [tensor(dtype, shape) for shape in SHAPES for dtype in SIZES]
    packed = PackedArrays(tensors, (((13, 0), (26, 2)), (), ((len(tensors) - 1, 0),)))
    data = file_of(RECORD, packed)
    _, found = decode(data, SECRET, None)
    assert contents(found) == contents(packed)
    assert found.places == packed.places
    body = 8 + int.from_bytes(data[:8], "little")
    for entry in [value for key, value in header_of(data).items() if key.isdigit()]:
        offsets = entry["data_offsets"]
        assert isinstance(offsets, list)
        assert (body + offsets[0]) % SIZES[str(entry["dtype"])] == 0


@pytest.mark.parametrize(
    "record",
    [
        Record("", ROOT, 0, ()),
        Record("ein Modell ✓ \"'\\\n\x00", ROOT, 0, (1,)),
        Record(SPACE, ROOT, 12, tuple(range(block_file.MAX_TOKENS))),
        Record(SPACE, ROOT, 12, (1, 2), RecordKind.CHECKPOINT, worth=3),
    ],
)
def test_records_come_back(record: Record) -> None:
    data = file_of(record, PackedArrays((), ()))
    found, packed = decode(data, SECRET, name_of(record))
    assert (found, packed) == (record, PackedArrays((), ()))
    assert read_record(data) == record


def test_nothing_is_copied() -> None:
    memory = memoryview(bytes(8))
    parts = encode(RECORD, PackedArrays([RecordTensor("F32", (2,), memory)], ()), SECRET)
    assert parts[1] is memory
    data = b"".join(parts)
    view = decode(data, SECRET, None)[1].tensors[0].data
    assert isinstance(view, memoryview) and view.obj is data


def test_the_safetensors_library_reads_the_same_arrays() -> None:
    packed = PackedArrays([tensor(dtype, shape) for shape in SHAPES for dtype in SIZES], ())
    data = file_of(RECORD, packed)
    found = _as_the_library_reads(data)
    assert [found[str(index)] for index in range(len(found))] == contents(packed)
    assert all(type(value) is str for value in header_of(data)["__metadata__"].values())
    assert _as_the_library_reads(file_of(RECORD, PackedArrays((), ()))) == {}


def _as_the_library_reads(data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    deserialize: Any = safetensors.deserialize
    return {
        name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in deserialize(data)
    }


def test_the_format_is_the_same_on_every_machine() -> None:
    """A change of this needs another format version."""
    assert block_file.FORMAT_VERSION == 1
    packed = PackedArrays(
        [RecordTensor("U8", (3,), b"abc"), RecordTensor("F32", (2,), b"01234567")], PLACES
    )
    metadata = header_of(file_of(RECORD, packed))["__metadata__"]
    assert metadata["tokens"] == "BQAAAAAAAAD/////BwAAAA=="
    assert metadata["places"] == "[[[0,2],[1,0]],[[1,1]]]"
    digest = str(metadata["digest"])
    assert digest.startswith("2cf70296c9b12964")
    blank = file_of(RECORD, packed).replace(digest.encode(), b"0" * 64)
    assert hashlib.blake2b(blank, key=SECRET, digest_size=32).hexdigest() == digest


# What is not as it was written


def test_every_flipped_bit_is_found() -> None:
    data = file_of()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        reason_of(bytes(flipped), name_of(RECORD))


def test_every_flipped_bit_of_the_front_is_found() -> None:
    """All eight bits where the parts have a meaning of their own: length, version, digest."""
    data = file_of()
    for at in range(block_file._DIGEST.stop + 8):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            reason_of(bytes(flipped), name_of(RECORD))


def test_every_truncation_is_found() -> None:
    data = file_of()
    reasons = {reason_of(data[:length], name_of(RECORD)) for length in range(len(data))}
    assert reasons == {"truncated", "digest"}


def test_junk_behind_and_zeroed_data_are_found() -> None:
    data = file_of()
    assert reason_of(data + b"\0") == "digest"
    assert reason_of(data + data) == "digest"
    assert reason_of(data[:-16] + bytes(16)) == "digest"
    assert reason_of(bytes(len(data))) == "header"


def test_another_files_content_is_found() -> None:
    other = replace(RECORD, tokens=(5, 0, 1, 8))
    state = replace(RECORD, part=RecordKind.CHECKPOINT)
    for record in (other, state):
        assert reason_of(file_of(record), name_of(RECORD)) == "key"
        assert decode(file_of(record), SECRET, name_of(record))[0] == record


def test_another_namespace_is_found() -> None:
    other = replace(RECORD, namespace="another model")
    assert reason_of(file_of(other), name_of(RECORD)) == "namespace"


def test_another_installations_file_is_found() -> None:
    assert reason_of(file_of(secret=bytes(32)), name_of(RECORD)) == "digest"


def test_another_format_version_is_found() -> None:
    later = file_of().replace(b"omlx block 1", b"omlx block 2", 1)
    assert reason_of(later, name_of(RECORD)) == "version"


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 7, b"\xff" * 100, b"PK\x03\x04" * 50, b"{}", bytes(4096)]
)
def test_foreign_files_are_corrupt(data: bytes) -> None:
    assert reason_of(data) in ("truncated", "header")
    assert read_record(data) is None


def test_another_programs_safetensors_are_corrupt() -> None:
    text = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    data = len(text).to_bytes(8, "little") + text + b"ab"
    assert _as_the_library_reads(data) == {"a": ("U8", (2,), b"ab")}
    assert reason_of(data) == "header"


# Headers that somebody with the secret might write: the checks behind the digest


def test_resigning_itself_changes_nothing() -> None:
    assert resigned({}) == file_of()


KIND = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
HOSTILE: dict[str, dict[str, object]] = {
    "key": {"key": "00" * 32},
    "parent too short": {"parent": "00"},
    "parent with spaces": {"parent": " " + ROOT.hex()},
    "start below 0": {"start": "-1"},
    "start in another spelling": {"start": "+8"},
    "huge start": {"start": str(1 << 60)},
    "tokens of half a number": {"tokens": "BQAAAAAA"},
    "tokens not base64": {"tokens": "?"},
    "too many tokens": {"tokens": "AAAA" * (4 * block_file.MAX_TOKENS)},
    "part": {"part": "soul"},
    "worth": {"worth": "1.0"},
    "worth a number": {"worth": 0},
    "namespace a number": {"namespace": 7},
    "namespace without bytes": {"namespace": "\ud800"},
    "unknown field": {"more": "x"},
    "places not JSON": {"places": "["},
    "places of no tensor": {"places": "[[[2,0]]]"},
    "places behind an axis": {"places": "[[[0,3]]]"},
    "places below 0": {"places": "[[[-1,0]]]"},
    "places true": {"places": "[[[true,0]]]"},
    "places with blanks": {"places": "[[[0, 2],[1,0]],[[1,1]]]"},
    "places deep": {"places": "[" * 100_000},
    "type": {"1": {**KIND, "dtype": "F8_E4M3"}},
    "type a list": {"1": {**KIND, "dtype": ["F32"]}},
    "another type of that size": {"1": {**KIND, "dtype": "F64"}},
    "shape true": {"1": {**KIND, "shape": [True, 4]}},
    "shape a fraction": {"1": {**KIND, "shape": [2.0, 2]}},
    "shape below 0": {"1": {**KIND, "shape": [-2, -2]}},
    "shape of many axes": {"1": {**KIND, "shape": [2, 2, *[1] * 7]}},
    "shape huge": {"1": {**KIND, "shape": [1 << 47] * 8}},
    "offsets shifted": {"1": {**KIND, "data_offsets": [1, 17]}},
    "offsets over another tensor": {"1": {**KIND, "data_offsets": [3, 19]}},
    "offsets too far": {"1": {**KIND, "data_offsets": [0, 1 << 40]}},
    "entry more": {"1": {**KIND, "more": 1}},
    "entry not a map": {"1": [1, 2]},
    "tensor missing": {"3": KIND},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_header_that_is_not_one_of_ours_is_refused(case: str) -> None:
    data = resigned(HOSTILE[case])
    assert reason_of(data) == ("key" if case == "key" else "header")
    assert read_record(data) is None


def test_double_names_are_refused() -> None:
    data = file_of()
    text = data[8 : 8 + int.from_bytes(data[:8], "little")].decode().rstrip()
    double = text[:-1] + ',"0":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}}'
    assert reason_of(signed(double, data[-19:])) == "header"


@pytest.mark.parametrize("length", [0, 18, 20, 100])
def test_data_of_another_length_than_the_header_says_are_refused(length: int) -> None:
    assert reason_of(resigned({}, bytes(length))) == "truncated"


def test_a_hostile_header_is_refused_at_once() -> None:
    front = block_file._BEGINNING.decode() + "0" * 64 + '",'
    fillers = ["[" * 500_000, '"x":[' + "[]," * 300_000, '"x":' + "9" * 900_000]
    for filler in fillers:
        before = time.process_time()
        assert read_record(signed(front + filler)) is None
        assert time.process_time() - before < 2.0
    assert read_record((1 << 62).to_bytes(8, "little") + bytes(100)) is None
    assert reason_of((1 << 62).to_bytes(8, "little") + bytes(100)) == "header"


def test_random_changes_to_a_header_are_refused_or_say_the_same() -> None:
    """Signed, so that the digest can't help. Nothing but Corrupt may come out."""
    rng = random.Random(3)
    data = file_of()
    length = int.from_bytes(data[:8], "little")
    good = 0
    for _ in range(3000):
        text = bytearray(data[8 : 8 + length])
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(block_file._BEGINNING) + 64, length)
            text[at : at + rng.randrange(2)] = rng.choice([b"0", b",", b'"', b"[", b"-", b"\xff"])
        try:
            record, packed = decode(signed(bytes(text), data[8 + length :]), SECRET, None)
        except Corrupt:
            continue
        good += 1
        assert file_of(record, packed) == signed(bytes(text), data[8 + length :])
    assert good < 300


# What can't be read back is not written


@pytest.mark.parametrize(
    ("record", "packed"),
    [
        (replace(RECORD, tokens=(1,) * (block_file.MAX_TOKENS + 1)), PACKED),
        (replace(RECORD, tokens=(-1,)), PACKED),
        (replace(RECORD, tokens=(1 << 32,)), PACKED),
        (replace(RECORD, start=-1), PACKED),
        (replace(RECORD, namespace="x" * (1 << 20)), PACKED),
        (replace(RECORD, namespace="\ud800"), PACKED),
        (RECORD, PackedArrays([RecordTensor("F8", (1,), b"1")], ())),
        (RECORD, PackedArrays([RecordTensor("F32", (1,), b"123")], ())),
        (RECORD, PackedArrays([RecordTensor("U8", (2,), memoryview(b"1234")[::2])], ())),
        (RECORD, PackedArrays([RecordTensor("U8", (1,) * 9, b"1")], ())),
        (RECORD, PackedArrays([], (((0, 0),),))),
    ],
)
def test_what_could_not_be_read_back_is_not_written(record: Record, packed: PackedArrays) -> None:
    with pytest.raises(ValueError):
        encode(record, packed, SECRET)


def test_a_head_is_enough_for_the_record() -> None:
    data = file_of()
    length = 8 + int.from_bytes(data[:8], "little")
    assert read_record(data[:length]) == RECORD
    assert read_record(data[: length - 1]) is None
