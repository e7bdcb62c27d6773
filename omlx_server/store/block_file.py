"""A block as one file: a safetensors file whose header proves where it belongs.

    | bytes              | what                                                              |
    | [0, 8)             | length n of the header                                            |
    | [8, 8 + n)         | JSON: format version, digest, record, places, one entry per tensor|
    | [8 + n, file size) | the tensors, largest items first, so that each is aligned         |

The digest is a keyed blake2b over the file with the digest's own 64 digits as zeros, at a fixed
place. A header must be, byte for byte, the one that we would write. Neither direction copies a
tensor.
"""

import base64
import hashlib
import hmac
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import msgspec
from msgspec import Meta

from omlx_server.core.blocks.keys import BlockKey, namespace_id
from omlx_server.core.blocks.record import PackedArrays, Record, RecordKind, RecordTensor
from omlx_server.store.mediums.medium import Buffer, Name

FORMAT_VERSION = 1

# Limits of a header, so that reading one takes little time and memory.
MAX_HEADER_BYTES = 1 << 20
MAX_TOKENS = 4096
_Number = Annotated[int, Meta(ge=0, lt=1 << 48)]

_TYPES = {
    1: ("BOOL", "U8", "I8"),
    2: ("U16", "I16", "F16", "BF16"),
    4: ("U32", "I32", "F32"),
    8: ("U64", "I64", "F64"),
}
_ITEM_BYTES = {name: size for size, names in _TYPES.items() for name in names}

_BEGINNING_OF_ANY_VERSION = b'{"__metadata__":{"format":"omlx block '
_BEGINNING = _BEGINNING_OF_ANY_VERSION + f'{FORMAT_VERSION}","digest":"'.encode()
_DIGEST = slice(8 + len(_BEGINNING), 8 + len(_BEGINNING) + 64)
_NO_DIGEST = "0" * 64

_Places = tuple[tuple[tuple[_Number, _Number], ...], ...]  # (tensor, index) by layer and array


class _Metadata(msgspec.Struct):
    namespace: str
    key: str
    parent: str
    start: _Number
    tokens: str
    part: RecordKind
    worth: _Number
    places: str


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[tuple[_Number, ...], Meta(max_length=8)]


class Corrupt(Exception):
    """A file is not what its name says. `reason`: truncated, header, version, digest, key or
    namespace."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not a block that can be used: {reason}")
        self.reason = reason


def encode(record: Record, packed: PackedArrays, secret: bytes) -> list[Buffer]:
    """Return header and tensors, uncopied. Raises ValueError for what can't be read back."""
    kinds = tuple((tensor.dtype, tensor.shape) for tensor in packed.tensors)
    try:
        unsigned = _Header(record, kinds, packed.places).to_bytes()
        _parse(unsigned)
    except (Corrupt, KeyError, OverflowError, struct.error) as error:
        raise ValueError("such a block could not be read back") from error
    for tensor, kind in zip(packed.tensors, kinds, strict=True):
        view = memoryview(tensor.data)
        if not view.c_contiguous or view.nbytes != _tensor_bytes(kind):
            raise ValueError("a tensor's data are not of its type and shape")
    data = [packed.tensors[index].data for index in _file_order(kinds)]
    return [_with_digest(unsigned, _digest([unsigned, *data], secret)), *data]


def file_bytes(record: Record, packed: PackedArrays) -> int:
    """Return the encoded size. Raises KeyError for a dtype, struct.error for a token id."""
    kinds = tuple((tensor.dtype, tensor.shape) for tensor in packed.tensors)
    header = _Header(record, kinds, packed.places).to_bytes()
    return len(header) + sum(_tensor_bytes(kind) for kind in kinds)


def decode(data: bytes, secret: bytes, expected: Name | None) -> tuple[Record, PackedArrays]:
    """Return the block; its tensors are views of `data`. Raises Corrupt unless every byte is as
    written, under the `expected` name if given."""
    view = memoryview(data)
    signed = _read_header(view)
    unsigned = _with_digest(signed, _NO_DIGEST)
    body = view[len(signed) :]
    if not hmac.compare_digest(signed[_DIGEST], _digest([unsigned, body], secret).encode()):
        raise Corrupt("digest")
    header = _parse(unsigned)
    _check_name(header.record, expected)
    spans = _spans(header.kinds)
    if len(body) != sum(stop - start for start, stop in spans):
        raise Corrupt("truncated")
    tensors = tuple(
        RecordTensor(dtype, shape, body[start:stop])
        for (dtype, shape), (start, stop) in zip(header.kinds, spans, strict=True)
    )
    return header.record, PackedArrays(tensors, header.places)


def read_record(head: bytes) -> Record | None:
    """Return the unverified record in the first bytes of a file; None if they make no sense."""
    try:
        signed = _read_header(memoryview(head))
        return _parse(_with_digest(signed, _NO_DIGEST)).record
    except Corrupt:
        return None


_TensorKind = tuple[str, tuple[int, ...]]  # type and shape of a tensor


@dataclass(frozen=True, slots=True)
class _Header:
    record: Record
    kinds: tuple[_TensorKind, ...]
    places: _Places

    def to_bytes(self) -> bytes:
        spans = _spans(self.kinds)
        fields: dict[str, object] = {"__metadata__": self._metadata()}
        for index in _file_order(self.kinds):
            dtype, shape = self.kinds[index]
            fields[str(index)] = {"dtype": dtype, "shape": shape, "data_offsets": spans[index]}
        text = _json(fields)
        text += " " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text.encode()

    def _metadata(self) -> dict[str, str]:
        record = self.record
        tokens = struct.pack(f"<{len(record.tokens)}I", *record.tokens)
        return {
            "format": f"omlx block {FORMAT_VERSION}",
            "digest": _NO_DIGEST,
            "namespace": record.namespace,
            "key": record.key.hex(),
            "parent": record.parent.hex(),
            "start": str(record.start),
            "tokens": base64.b64encode(tokens).decode(),
            "part": record.part.value,
            "worth": str(record.worth),
            "places": _json(self.places),
        }


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _tensor_bytes(kind: _TensorKind) -> int:
    dtype, shape = kind
    return _ITEM_BYTES[dtype] * math.prod(shape)


def _file_order(kinds: tuple[_TensorKind, ...]) -> list[int]:
    return sorted(range(len(kinds)), key=lambda index: -_ITEM_BYTES[kinds[index][0]])


def _spans(kinds: tuple[_TensorKind, ...]) -> list[tuple[int, int]]:
    spans = [(0, 0)] * len(kinds)
    offset = 0
    for index in _file_order(kinds):
        spans[index] = (offset, offset + _tensor_bytes(kinds[index]))
        offset = spans[index][1]
    return spans


def _with_digest(header: bytes, digest: str) -> bytes:
    return header[: _DIGEST.start] + digest.encode() + header[_DIGEST.stop :]


def _digest(parts: Iterable[Buffer], secret: bytes) -> str:
    digest = hashlib.blake2b(key=secret, digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _read_header(data: memoryview) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise Corrupt("header")
    if len(data) < 8 + length:
        raise Corrupt("truncated")
    header = bytes(data[: 8 + length])
    if not header.startswith(_BEGINNING, 8):
        raise Corrupt("version" if header.startswith(_BEGINNING_OF_ANY_VERSION, 8) else "header")
    return header


def _parse(unsigned: bytes) -> _Header:
    if len(unsigned) > 8 + MAX_HEADER_BYTES:
        raise Corrupt("header")
    try:
        fields = msgspec.json.decode(unsigned[8:], type=dict[str, msgspec.Raw])
        texts = msgspec.json.decode(fields.pop("__metadata__"), type=dict[str, str])
        metadata = msgspec.convert(texts, _Metadata, strict=False)
        record = _record_of(metadata)
        entries = [msgspec.json.decode(fields[str(i)], type=_Entry) for i in range(len(fields))]
        kinds = tuple((entry.dtype, entry.shape) for entry in entries)
        header = _Header(record, kinds, _parse_places(metadata.places, kinds))
        if metadata.key != record.key.hex():
            raise Corrupt("key")
        if header.to_bytes() != unsigned:
            raise Corrupt("header")
    except (KeyError, RecursionError, ValueError, struct.error) as error:
        raise Corrupt("header") from error
    return header


def _record_of(metadata: _Metadata) -> Record:
    raw = base64.b64decode(metadata.tokens, validate=True)
    parent = bytes.fromhex(metadata.parent)
    if len(raw) > 4 * MAX_TOKENS or len(parent) != 32:
        raise ValueError("a field of the wrong length")
    return Record(
        namespace=metadata.namespace,
        parent=BlockKey(parent),
        start=metadata.start,
        tokens=struct.unpack(f"<{len(raw) // 4}I", raw),
        part=metadata.part,
        worth=metadata.worth,
    )


def _parse_places(text: str, kinds: tuple[_TensorKind, ...]) -> _Places:
    places = msgspec.json.decode(text, type=_Places)
    for tensor, index in chain(*places):
        shape = kinds[tensor][1] if tensor < len(kinds) else ()
        if not shape or index >= shape[0]:
            raise ValueError("a place outside the tensors")
    return places


def _check_name(record: Record, expected: Name | None) -> None:
    if expected is None:
        return
    if record.key.hex() != expected.key:
        raise Corrupt("key")
    if namespace_id(record.namespace) != expected.namespace:
        raise Corrupt("namespace")
