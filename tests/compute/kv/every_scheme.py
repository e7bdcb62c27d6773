"""The schemes that every law is tested with. A further one is one line here."""

from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.kv.schemes import codebook, packing
from omlx_server.compute.kv.schemes.affine import BITS, Affine
from omlx_server.compute.kv.schemes.base import Arrays, Scheme
from omlx_server.compute.kv.schemes.rotated import Rotated
from omlx_server.compute.kv.schemes.turboquant import CHOICES, TurboQuant
from tests.arrays import plain

GROUP = 32

SCHEMES: tuple[Scheme, ...] = (
    *(Affine(bits, GROUP) for bits in BITS),
    *(Rotated.of(bits, GROUP) for bits in BITS),
    *(TurboQuant.of_bits(bits) for bits in CHOICES),
)
FOUR_BITS: tuple[Scheme, ...] = (Affine(4, GROUP), Rotated.of(4, GROUP), TurboQuant.of_bits(4))


def named(scheme: Scheme) -> str:
    return scheme.name


every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=named)
every_kind = pytest.mark.parametrize("scheme", FOUR_BITS, ids=named)


def same_bits(one: Arrays, other: Arrays) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and plain(mx.array_equal(a, b)) for a, b in zip(one, other, strict=True)
    )


def bytes_of_token(scheme: Any, heads: int, head_dim: int, width: int) -> float:
    """What the format says a token of one layer takes, where the model computes in `width` bytes
    a number."""
    numbers = heads * head_dim
    if isinstance(scheme, Rotated):
        scheme = scheme.affine
    if isinstance(scheme, Affine):
        return 2 * numbers * (scheme.bits / 8 + 2 * width / scheme.group_size)
    assert isinstance(scheme, TurboQuant)
    return numbers * (scheme.key_bits + scheme.value_bits) / 8 + 2 * heads * 2


def dequantized_keys(scheme: TurboQuant, arrays: Arrays, dim: int, dtype: mx.Dtype) -> mx.array:
    """Keys [B, H, T, dim] in full precision."""
    keys = _dequantized(scheme, arrays, scheme.key_bits, dim)
    return (keys if scheme.centre is None else keys + scheme.centre).astype(dtype)


def dequantized_values(scheme: TurboQuant, arrays: Arrays, dim: int, dtype: mx.Dtype) -> mx.array:
    """Values [B, H, T, dim] in full precision."""
    return _dequantized(scheme, arrays, scheme.value_bits, dim).astype(dtype)


def _dequantized(scheme: TurboQuant, arrays: Arrays, bits: int, dim: int) -> mx.array:
    packed, scale = arrays
    levels = codebook.decode(packing.unpack(packed, bits), bits)[..., :dim]
    return scheme._rotation(dim).inverse(levels * scale.astype(mx.float32))
