"""Turns GGUF's quantised blocks into MLX's affine form in groups of 32, value for value."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omlx_server.core.gguf.forms import GROUP

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AffineBlocks:
    """`q` is uint8 [n, groups of 32, 32] of `bits` bits; scale and offset are float32
    [n, groups]."""

    bits: int
    q: Bytes
    scale: Floats
    offset: Floats

    def packed(self) -> npt.NDArray[np.uint32]:
        """Pack `q` as MLX does, its lowest bits first: uint32 [n, 32 x groups x bits / 32]."""
        n = len(self.q)
        q = self.q.reshape(n, -1)
        if self.bits == 8:
            return np.ascontiguousarray(q).view("<u4")
        if self.bits == 4:
            return pack_nibbles(q)
        # Eight values fill `bits` bytes.
        places = np.arange(8, dtype=np.uint64) * np.uint64(self.bits)
        words = np.bitwise_or.reduce(q.reshape(n, -1, 8).astype(np.uint64) << places, axis=-1)
        of_each = words.view(np.uint8).reshape(n, -1, 8)[..., : self.bits]
        return np.ascontiguousarray(of_each).reshape(n, -1).view("<u4")


def pack_nibbles(q: Bytes) -> npt.NDArray[np.uint32]:
    """Pack values of 4 bits [n, m] into uint32 [n, m / 8]."""
    return np.ascontiguousarray(q[:, ::2] | q[:, 1::2] << np.uint8(4)).view("<u4")


def low_then_high(packed: Bytes) -> Bytes:
    """Return the low halves of all bytes [n, m], then the high ones: [n, 2m]."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def _halves(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    return low_then_high(packed).reshape(len(packed), 1, GROUP)


def _fifth_bits(packed: Bytes) -> Bytes:
    bits = np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little")
    return (bits << np.uint8(4)).reshape(len(packed), 1, GROUP)


def _q4_0(blocks: Bytes) -> AffineBlocks:
    scale = _halves(blocks[:, :2])
    return AffineBlocks(4, _nibbles(blocks[:, 2:]), scale, -8 * scale)


def _q4_1(blocks: Bytes) -> AffineBlocks:
    return AffineBlocks(4, _nibbles(blocks[:, 4:]), _halves(blocks[:, :2]), _halves(blocks[:, 2:4]))


def _q5_0(blocks: Bytes) -> AffineBlocks:
    scale, q = _halves(blocks[:, :2]), _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return AffineBlocks(5, q, scale, -16 * scale)


def _q5_1(blocks: Bytes) -> AffineBlocks:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return AffineBlocks(5, q, _halves(blocks[:, :2]), _halves(blocks[:, 2:4]))


def _q8_0(blocks: Bytes) -> AffineBlocks:
    scale = _halves(blocks[:, :2])
    q = (blocks[:, 2:] ^ np.uint8(128)).reshape(len(blocks), 1, GROUP)  # of int8, plus 128
    return AffineBlocks(8, q, scale, -128 * scale)


def _scales_of_k(blocks: Bytes) -> tuple[Floats, Floats]:
    """Return scale and offset [n, 8] of a super-block's sub-blocks: 6 bits of each in 12 bytes."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=1)
    minima = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=1)
    return _halves(blocks[:, :2]) * scales, -_halves(blocks[:, 2:4]) * minima


def _halves_of_64(packed: Bytes) -> Bytes:
    """Return 8 sub-blocks from 128 bytes: of 32 bytes the low halves are one, the high the next."""
    return low_then_high(packed.reshape(len(packed), 4, GROUP)).reshape(len(packed), 8, GROUP)


def _q4_k(blocks: Bytes) -> AffineBlocks:
    return AffineBlocks(4, _halves_of_64(blocks[:, 16:]), *_scales_of_k(blocks))


def _q5_k(blocks: Bytes) -> AffineBlocks:
    # Bit i of the 32 bytes is the fifth of sub-block i.
    places = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = (blocks[:, None, 16:48] >> places & np.uint8(1)) << np.uint8(4)
    return AffineBlocks(5, _halves_of_64(blocks[:, 48:]) | fifth, *_scales_of_k(blocks))


def _q6_k(blocks: Bytes) -> Floats:
    n = len(blocks)
    low = low_then_high(blocks[:, :128].reshape(n, 2, 64)).reshape(n, 2, 4, 32)
    pairs = np.arange(4, dtype=np.uint8)[None, None, :, None] * 2
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> pairs & 3
    q = (low | high << 4).astype(np.int8) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _halves(blocks[:, 208:])
    return np.reshape(scales[..., None] * q.reshape(n, 16, 16), (n, 256))


def _two_bits(packed: Bytes) -> Bytes:
    """Return 256 values from 64 bytes: of 32 bytes the lowest two bits are 32 values, and so on."""
    n = len(packed)
    pairs = np.arange(4, dtype=np.uint8)[None, None, :, None] * 2
    return (packed.reshape(n, 2, 1, 32) >> pairs & np.uint8(3)).reshape(n, 256)


def _q2_k(blocks: Bytes) -> Floats:
    n, scales = len(blocks), blocks[:, :16]
    scale = _halves(blocks[:, 80:82]) * (scales & 15)
    offset = -_halves(blocks[:, 82:]) * (scales >> 4)
    q = _two_bits(blocks[:, 16:80]).reshape(n, 16, 16)
    return (scale[..., None] * q + offset[..., None]).reshape(n, 256).astype(np.float32)


def _q3_k(blocks: Bytes) -> Floats:
    n, packed = len(blocks), blocks[:, 96:108]
    places = np.arange(4, dtype=np.uint8)[None, :, None] * 2
    low = low_then_high(packed[:, :8])
    high = (packed[:, None, 8:] >> places & 3).reshape(n, 16)
    scales = (low | high << 4).astype(np.int8) - 32
    third = np.unpackbits(np.ascontiguousarray(blocks[:, :32]), axis=1, bitorder="little")
    third = third.reshape(n, 32, 8).swapaxes(1, 2).reshape(n, 256)  # bit i: of values 32i to 32i+31
    q = _two_bits(blocks[:, 32:96]).astype(np.int8) + 4 * third.astype(np.int8) - 4
    scale = _halves(blocks[:, 108:]) * scales
    return (scale[..., None] * q.reshape(n, 16, 16)).reshape(n, 256).astype(np.float32)


def _again(values: Floats) -> AffineBlocks:
    """Quantise values [n, m] in 8 bits: each is off by half a step at most."""
    groups = values.reshape(len(values), -1, GROUP)
    offset = groups.min(axis=-1)
    scale = (groups.max(axis=-1) - offset) / np.float32(255)
    steps = (groups - offset[..., None]) / np.where(scale, scale, 1)[..., None]
    return AffineBlocks(8, np.rint(steps).astype(np.uint8), scale, offset)


# A group's values are scale x q + offset in both. K types say a sub-block's scale and offset as
# products of a half and 6 bits: float32 holds these. Types with sub-blocks of 16 have two scales a
# group: these are unpacked, and quantised again in 8 bits.
EXACT: dict[str, Callable[[Bytes], AffineBlocks]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q4_K": _q4_k, "Q5_K": _q5_k,
}  # fmt: skip
UNPACKED: dict[str, Callable[[Bytes], Floats]] = {"Q2_K": _q2_k, "Q3_K": _q3_k, "Q6_K": _q6_k}


def affine_blocks(blocks: Bytes, kind: str) -> AffineBlocks:
    """Return blocks [n, bytes] of a type in MLX's form."""
    return EXACT[kind](blocks) if kind in EXACT else _again(UNPACKED[kind](blocks))
