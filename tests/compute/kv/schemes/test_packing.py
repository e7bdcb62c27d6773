"""Indices to words and back, against a naive oracle of the layout."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.compute.kv.schemes import packing
from tests.arrays import plain

every_width = pytest.mark.parametrize("bits", packing.BITS)


def drawn(seed: int, bits: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**bits, shape, dtype=np.uint8)


def naive(index: list[int], bits: int) -> list[int]:
    """The words of one vector, bit by bit."""
    planes = bits if bits in (1, 3) else 1
    values_per_word = 32 if planes == bits else 32 // bits
    per_plane = -(-len(index) // values_per_word)
    words = [0] * (planes * per_plane)
    for position, value in enumerate(index):
        word, within = divmod(position, values_per_word)
        if planes == bits and bits != 8:
            byte, bit = divmod(within, 8)
            for k in range(planes):
                words[k * per_plane + word] |= (value >> k & 1) << (8 * byte + 7 - bit)
        else:
            words[word] |= value << (within * bits)
    return words


@given(
    seed=st.integers(0, 2**32),
    bits=st.sampled_from(packing.BITS),
    dim=st.one_of(st.integers(1, 70), st.sampled_from([80, 96, 112, 128, 256])),
    lead=st.sampled_from([(), (1,), (3,), (2, 1, 3)]),
)
@settings(max_examples=150, deadline=None)
def test_what_is_packed_is_as_specified_and_unpacks(
    seed: int, bits: int, dim: int, lead: tuple[int, ...]
) -> None:
    index = drawn(seed, bits, *lead, dim)
    packed = packing.pack(mx.array(index), bits)
    count = packing.words(dim, bits)
    assert packed.dtype == mx.uint32 and packed.shape == (*lead, count)
    expected = [naive(row.tolist(), bits) for row in index.reshape(-1, dim)]
    assert plain(packed.reshape(-1, count)) == expected
    unpacked = packing.unpack(packed, bits)
    assert unpacked.dtype == mx.uint8
    assert unpacked.shape == (*lead, packing.capacity(count, bits))
    assert plain(unpacked[..., :dim]) == index.tolist()
    assert not np.array(unpacked[..., dim:]).any()


@pytest.mark.parametrize("dim", [1, 31, 64, 80, 128])
def test_values_of_three_bits_are_spread_to_four(dim: int) -> None:
    index = drawn(4, 3, 2, 3, 9, dim)
    packed = packing.pack(mx.array(index), 3)
    for words, values in ((packed, index), (packed[:, 1:, 2:7], index[:, 1:, 2:7])):
        spread = packing.unpack(packing.nibbles(words), 4)
        assert plain(spread[..., :dim]) == values.tolist()
        assert not np.array(spread[..., dim:]).any()


@every_width
def test_words_are_as_few_as_can_be(bits: int) -> None:
    assert packing.words(128, bits) == 4 * bits
    for dim in range(1, 100):
        count = packing.words(dim, bits)
        spare = packing.capacity(count, bits) - dim
        assert 0 <= spare < max(32 // bits, 32 if bits == 3 else 0)


@every_width
def test_a_slice_of_tokens_unpacks_as_the_whole(bits: int) -> None:
    index = drawn(1, bits, 2, 3, 11, 64)
    packed = packing.pack(mx.array(index), bits)
    assert plain(packing.unpack(packed[:, 1:, 4:9], bits)) == index[:, 1:, 4:9].tolist()
    swapped = packing.pack(mx.array(index).swapaxes(1, 2), bits)
    assert plain(swapped) == plain(packed.swapaxes(1, 2))


@every_width
def test_largest_values_stay_in_their_place(bits: int) -> None:
    for position in range(64):
        index = np.zeros(64, dtype=np.uint8)
        index[position] = 2**bits - 1
        assert plain(packing.unpack(packing.pack(mx.array(index), bits), bits)) == index.tolist()


@pytest.mark.parametrize("bits", [0, 5, 6, 7, 16])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="no packing"):
        packing.words(64, bits)
