"""Converts payloads to bytes for the cold tier and back, on the mlx thread. Any thread may read the
bytes, which are the arrays' own memory."""

from typing import Any

import mlx.core as mx
import numpy as np

from omlx_server.compute.hardware import device
from omlx_server.compute.payload import Payload
from omlx_server.core.blocks.record import PackedArrays, RecordTensor

# MLX's and numpy's dtypes by their names in files. Buffers have no bfloat16: it is stored as u16.
_TYPES = {
    "BOOL": (mx.bool_, np.bool_),
    "U8": (mx.uint8, np.uint8),
    "I8": (mx.int8, np.int8),
    "U16": (mx.uint16, np.uint16),
    "I16": (mx.int16, np.int16),
    "F16": (mx.float16, np.float16),
    "BF16": (mx.bfloat16, np.uint16),
    "U32": (mx.uint32, np.uint32),
    "I32": (mx.int32, np.int32),
    "F32": (mx.float32, np.float32),
    "U64": (mx.uint64, np.uint64),
    "I64": (mx.int64, np.int64),
}
_NAMES = {ours: name for name, (ours, _) in _TYPES.items()}


def pack(payload: Payload) -> PackedArrays:
    """Return a payload's arrays as bytes. Waits until they are computed."""
    own = payload.detached()
    device.wait_for(*own.buffers)
    return PackedArrays(tuple(_record_of(buffer) for buffer in own.buffers), own.places)


def unpack(packed: PackedArrays) -> Payload:
    """Return a payload with memory of its own. Raises ValueError for damaged bytes."""
    buffers = tuple(_array_of(tensor) for tensor in packed.tensors)
    for leaf in packed.places:
        for buffer, index in leaf:
            if not (0 <= buffer < len(buffers) and 0 <= index < buffers[buffer].shape[0]):
                raise ValueError("a layer's place is outside of the stored arrays")
    return Payload(buffers, packed.places)


def _record_of(array: mx.array) -> RecordTensor:
    plain = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    device.wait_for(plain)
    data = memoryview(plain).cast("B") if plain.size else b""  # type: ignore[arg-type]
    return RecordTensor(_NAMES[array.dtype], array.shape, data)


def _array_of(tensor: RecordTensor) -> mx.array:
    if tensor.dtype not in _TYPES:
        raise ValueError(f"arrays of {tensor.dtype} are not stored by this version")
    _, kind = _TYPES[tensor.dtype]
    numbers: Any = np.frombuffer(tensor.data, dtype=kind).reshape(tensor.shape)
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if tensor.dtype == "BF16" else array
