"""Payloads as bytes and back: no bit may change, and packing must not copy."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.payload import PAYLOAD_VERSION, BlockCodec, Payload, pack, unpack
from omlx_server.core.blocks.keys import root_key
from omlx_server.core.blocks.record import PackedArrays, Record, RecordTensor
from omlx_server.store.block_file import decode, encode
from tests.arrays import plain
from tests.compute.payloads import raw, same
from tests.tiny_models import CONFIGS, load_tiny

DTYPES = {
    "BOOL": mx.bool_,
    "U8": mx.uint8,
    "I8": mx.int8,
    "U16": mx.uint16,
    "I16": mx.int16,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "I32": mx.int32,
    "F32": mx.float32,
    "U64": mx.uint64,
    "I64": mx.int64,
}
RECORD = Record("m", root_key("m", b""), 0, (1, 2, 3))


def of_bits(dtype: mx.Dtype, shape: Sequence[int]) -> mx.array:
    """An array of any bit patterns: infinities, denormals and NaNs as well."""
    if dtype == mx.bool_:
        return mx.random.bernoulli(shape=shape, key=mx.random.key(1))
    bits = mx.random.randint(0, 256, (*shape, dtype.size), key=mx.random.key(2)).astype(mx.uint8)
    return bits.view(dtype).reshape(shape)


FORMATS = {1: {"llama_sliding": "9f855f4e7ffd5a8f", "falcon_h1": "da444b58c4aaf148"}}
"""Digests of the bytes of a block and a state, by the version in the format's name."""


@pytest.mark.parametrize("architecture", FORMATS[PAYLOAD_VERSION])
def test_other_bytes_of_a_block_are_another_version(architecture: str) -> None:
    """Blocks outlive the program: whoever changes what a part holds, or the order in which parts
    are packed, gives the format a new version, and writes down here what that makes."""
    model = load_tiny(architecture).model
    codec, caches = BlockCodec.of(model, 8), cache_ops.new_caches(model)
    assert codec is not None
    for number, leaf in enumerate(leaves(caches)):
        keys = mx.arange(12 * 16, dtype=mx.float32).reshape(1, 1, 12, 16) + 1000 * number
        if isinstance(leaf, ArraysCache):
            leaf.cache = [keys[0, :, :3] + slot for slot in range(len(leaf.cache))]
        else:
            leaf.update_and_fetch(keys, keys + 500)
    cut = [
        codec.cut_block(caches, CacheRow(0, 12), 4, 12),
        codec.cut_checkpoint(caches, CacheRow(0, 12)),
    ]
    tensors = [tensor for payload in cut for tensor in pack(payload).tensors]
    digest = sha256(b"".join(bytes(tensor.data) for tensor in tensors)).hexdigest()[:16]
    assert digest == FORMATS[PAYLOAD_VERSION][architecture]
    assert codec.layout.format.startswith(f"v{PAYLOAD_VERSION}:")


def through_a_file(packed: PackedArrays) -> PackedArrays:
    parts = encode(RECORD, packed, b"s" * 32)
    return decode(b"".join(parts), b"s" * 32, None)[1]


@pytest.mark.parametrize("shape", [(1,), (3, 1, 2, 5, 8), (2, 0, 4), (0,)])
@pytest.mark.parametrize("name", DTYPES)
def test_every_type_comes_back_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    array = of_bits(DTYPES[name], shape)
    payload = Payload((array,), (((0, 0),),) if shape[0] else ((),))
    packed = pack(payload)
    assert (packed.tensors[0].dtype, packed.tensors[0].shape) == (name, shape)
    assert packed.nbytes == payload.nbytes
    assert same(unpack(packed), payload)
    assert same(unpack(through_a_file(packed)), payload)


def test_arrays_of_many_types_and_a_quantized_triple_come_back() -> None:
    quantized = mx.quantize(of_bits(mx.float16, (1, 2, 8, 64)).astype(mx.float32), bits=4)
    buffers = (*quantized, *(of_bits(dtype, (2, 3)) for dtype in DTYPES.values()))
    payload = Payload(buffers, (((0, 0), (1, 0), (2, 0)), (), ((5, 1), (6, 0))))
    assert same(unpack(through_a_file(pack(payload))), payload)


def test_a_payload_without_arrays_comes_back() -> None:
    """What a block of a purely recurrent model holds."""
    payload = Payload((), ((), ()))
    assert same(unpack(through_a_file(pack(payload))), payload)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_what_a_model_remembers_comes_back(architecture: str) -> None:
    model = load_tiny(architecture).model
    codec = BlockCodec.of(model, 8)
    assert codec is not None
    caches = cache_ops.new_caches(model)
    mx.eval(model(mx.arange(12)[None], cache=caches))
    for payload in (
        codec.cut_block(caches, CacheRow(0, 12), 0, 8),
        codec.cut_block(caches, CacheRow(0, 12), 8, 12),
        codec.cut_checkpoint(caches, CacheRow(0, 12)),
    ):
        assert same(unpack(through_a_file(pack(payload))), payload)


# -- memory ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["F32", "BF16", "U32"])
def test_packing_copies_nothing(name: str) -> None:
    array = of_bits(DTYPES[name], (1 << 20,))
    mx.eval(array)
    before = mx.get_active_memory()
    packed = pack(Payload((array,), (((0, 0),),)))
    assert mx.get_active_memory() == before
    data = packed.tensors[0].data
    here = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    bits = array.view(mx.uint16) if name == "BF16" else array
    mx.eval(bits)
    assert here == np.array(bits, copy=False).__array_interface__["data"][0]


def test_unpacked_arrays_own_their_memory() -> None:
    data = bytearray(b"\1" * 4096)
    packed = PackedArrays((RecordTensor("U8", (4096,), memoryview(data)),), (((0, 0),),))
    array = unpack(packed).buffers[0]
    data[:] = b"\2" * 4096
    assert set(plain(array)) == {1}


def test_the_bytes_outlive_the_arrays_and_are_right_on_another_thread() -> None:
    payload = Payload((of_bits(mx.bfloat16, (64, 1024)), of_bits(mx.float32, (999,))), ((),))
    wanted = [raw(buffer) for buffer in payload.buffers]
    packed = pack(payload)
    del payload
    litter = [mx.full((64, 1024), n, mx.bfloat16) for n in range(8)]  # would take freed memory
    mx.eval(litter)
    found: list[bytes] = []
    held = [packed]
    del packed

    def read() -> None:
        found.extend(bytes(tensor.data) for tensor in held[0].tensors)
        held.clear()  # and the memory is given back there

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == wanted


def test_what_is_not_computed_yet_is_computed_first() -> None:
    lazy = mx.arange(1000, dtype=mx.float32) * 2 + 1
    assert bytes(pack(Payload((lazy,), ((),))).tensors[0].data) == raw(mx.arange(1, 2001, 2) * 1.0)


# -- what makes no sense -----------------------------------------------------------------


@pytest.mark.parametrize("place", [(1, 0), (-1, 0), (0, 2), (0, -1), (9, 9)])
def test_a_place_outside_of_the_arrays_is_refused(place: tuple[int, int]) -> None:
    packed = pack(Payload((mx.zeros((2, 3)),), (((0, 1),),)))
    with pytest.raises(ValueError, match="outside"):
        unpack(replace(packed, places=(((0, 1),), (place,))))


@pytest.mark.parametrize("shape", [(4,), (2, 3, 2), (7,)])
def test_bytes_that_are_not_of_their_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"reshape|size"):
        unpack(PackedArrays((RecordTensor("F32", shape, bytes(24)),), ()))


def test_a_dtype_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="F64"):
        unpack(PackedArrays((RecordTensor("F64", (3,), bytes(24)),), ()))
