"""Sets of tokens as bits, in the form of `core.request.Constraint.mask`."""

from collections.abc import Iterable, Iterator


def mask_of(size: int, tokens: Iterable[int]) -> bytes:
    """Return the mask of `size` tokens that allows exactly `tokens`."""
    words = bytearray((size + 31) // 32 * 4)
    for token in tokens:
        words[token // 8] |= 1 << token % 8
    return bytes(words)


def full_mask(size: int) -> bytes:
    return ((1 << size) - 1).to_bytes((size + 31) // 32 * 4, "little")


def union(one: bytes, other: bytes) -> bytes:
    size = max(len(one), len(other))
    bits = int.from_bytes(one, "little") | int.from_bytes(other, "little")
    return bits.to_bytes(size, "little")


def allows(mask: bytes, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)


def positions_of_bits(bits: int) -> Iterator[int]:
    while bits:
        yield bits.bit_length() - 1
        bits &= ~(1 << bits.bit_length() - 1)
