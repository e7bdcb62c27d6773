"""The head of a GGUF file: one that the `gguf` package writes is read, and a bad one is refused in
one line that says why."""

import io
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx_server.core.gguf.head import parse_head
from tests.models.tiny_gguf import write_gguf


def parsed(data: bytes, size: int | None = None) -> object:
    return parse_head(io.BytesIO(data), len(data) if size is None else size)


def file_of(
    fields: bytes = b"",
    n_fields: int = 0,
    tensors: bytes = b"",
    n_tensors: int = 0,
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    head = magic + struct.pack("<IQQ", version, n_tensors, n_fields)
    return head + fields + tensors + bytes(4096)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def field(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(
    name: bytes = b"t", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0
) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def one_tensor(**changes: object) -> bytes:
    return file_of(tensors=tensor(**changes), n_tensors=1)  # type: ignore[arg-type]


U64 = struct.pack("<Q", 1 << 63)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is cut"),
    "other": (file_of(magic=b"PK\x03\x04"), "no GGUF"),
    "big-endian": (file_of(version=3 << 24), "its version is"),
    "version 1": (file_of(version=1), "its version is 1"),
    "version 4": (file_of(version=4), "its version is 4"),
    "no counts": (b"GGUF" + struct.pack("<I", 3), "it is cut"),
    "many tensors": (file_of(n_tensors=1 << 40), "tensors"),
    "many fields": (file_of(n_fields=1 << 40), "fields"),
    "more fields than bytes": (file_of(n_fields=1 << 13), "twice"),
    "long name": (file_of(U64, 1), "it is cut"),
    "name of 1 TB": (file_of(struct.pack("<Q", 1 << 40), 1), "it is cut"),
    "not UTF-8": (file_of(field(b"\xff\xfe", 4, bytes(4)), 1), "UTF-8"),
    "text not UTF-8": (file_of(field(b"a", 8, text(b"\xff")), 1), "UTF-8"),
    "unknown type": (file_of(field(b"a", 13, bytes(8)), 1), "of type 13"),
    "text of 2**63": (file_of(field(b"a", 8, U64), 1), "it is cut"),
    "list of 2**63": (file_of(field(b"a", 9, struct.pack("<I", 0) + U64), 1), "values"),
    "list of texts that are not there": (
        file_of(field(b"a", 9, struct.pack("<IQ", 8, 1 << 20)), 1),
        "it is cut",
    ),
    "list of numbers that are not there": (
        file_of(field(b"a", 9, struct.pack("<IQ", 10, 1 << 20)), 1),
        "it is cut",
    ),
    "list of lists": (file_of(field(b"a", 9, struct.pack("<IQ", 9, 1)), 1), "of type 9"),
    "list of nothing known": (file_of(field(b"a", 9, struct.pack("<IQ", 99, 1)), 1), "type 99"),
    "a field twice": (file_of(field(b"a", 0, b"\1") * 2, 2), "'a' twice"),
    "alignment 0": (file_of(field(b"general.alignment", 4, bytes(4)), 1), "alignment is 0"),
    "alignment 3": (
        file_of(field(b"general.alignment", 4, struct.pack("<I", 3)), 1),
        "alignment is 3",
    ),
    "alignment of 4 GB": (
        file_of(field(b"general.alignment", 4, struct.pack("<I", 1 << 31)), 1),
        "alignment",
    ),
    "alignment by a text": (
        file_of(field(b"general.alignment", 8, text(b"32")), 1),
        "alignment is '32'",
    ),
    "alignment true": (file_of(field(b"general.alignment", 7, b"\1"), 1), "alignment is True"),
    "no dimensions": (one_tensor(shape=()), "0 dimensions"),
    "five dimensions": (one_tensor(shape=(1,) * 5), "5 dimensions"),
    "2**32 dimensions": (
        file_of(tensors=text(b"t") + struct.pack("<I", 0xFFFFFFFF), n_tensors=1),
        "dimensions",
    ),
    "a dimension of 0": (one_tensor(shape=(0, 4)), "the shape"),
    "a dimension of 2**63": (one_tensor(shape=(1 << 63,)), "the shape"),
    "dimensions that overflow": (one_tensor(shape=(1 << 33, 1 << 33)), "the shape"),
    "a row of half a block": (one_tensor(shape=(48,), kind=8), "the shape"),
    "an unknown tensor type": (one_tensor(kind=77), "of type 77"),
    "a removed tensor type": (one_tensor(kind=4), "of type 4"),
    "a tensor behind the end": (one_tensor(shape=(4096,)), "it is cut"),
    "an offset behind the end": (one_tensor(offset=1 << 50), "it is cut"),
    "an offset of 2**64 - 1": (one_tensor(offset=(1 << 64) - 1), "it is cut"),
    "a tensor twice": (file_of(tensors=tensor() * 2, n_tensors=2), "a tensor twice"),
    "an endless name of a tensor": (file_of(tensors=U64, n_tensors=1), "it is cut"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_the_reason(name: str) -> None:
    data, reason = HOSTILE[name]
    with pytest.raises(ValueError, match=reason) as caught:
        parsed(data)
    assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)


def test_a_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    parsed(data)
    for length in (*range(0, 4000, 97), len(data) - 1):
        with pytest.raises(ValueError, match="cut"):
            parsed(data[:length])
        with pytest.raises(ValueError, match="cut"):  # it shrinks while it is read
            parsed(data[: min(length, 3000)], len(data))


@pytest.mark.parametrize("change", [lambda byte: byte ^ 255, lambda byte: 0], ids=["flip", "zero"])
def test_a_changed_byte_is_read_or_refused(change: Callable[[int], int], tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    data = bytearray((tmp_path / "tiny.gguf").read_bytes())
    for at in range(0, 6000, 7):
        before, data[at] = data[at], change(data[at])
        try:
            parsed(bytes(data))
        except ValueError as error:
            assert str(error)
        data[at] = before
