"""Attention on what `mx.quantize` has packed, against plain attention on what it stands for."""

import math
import random
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.attention.by_powers import attention
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes import affine, tiles
from omlx_server.compute.kv.schemes.affine import (
    BITS,
    GROUP_SIZES,
    Affine,
    GroupRows,
    PackedTiles,
    UnpackedAffine,
)
from omlx_server.compute.kv.schemes.base import Arrays, Mask
from tests.arrays import plain


def noise(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def numbers(scheme: Affine, packed: Arrays) -> mx.array:
    words, scales, biases = packed
    return mx.dequantize(words, scales, biases, group_size=scheme.group_size, bits=scheme.bits)


def naive(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask) -> np.ndarray:
    """Softmax attention in float64, query by query."""
    q64, k64, v64 = (np.array(x.astype(mx.float32), dtype=np.float64) for x in (q, k, v))
    batch, heads, length, _ = q64.shape
    total, repeats = k64.shape[2], heads // k64.shape[1]
    k64, v64 = (np.repeat(x, repeats, axis=1) for x in (k64, v64))
    scores = scale * q64 @ k64.swapaxes(-1, -2)
    if isinstance(mask, str):
        mask = mx.arange(total - length, total)[:, None] >= mx.arange(total)
    if mask is not None:
        given = np.broadcast_to(np.array(mask), (batch, heads, length, total))
        scores = np.where(given, scores, -1e300) if given.dtype == bool else scores + given
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    answer: np.ndarray = (weights / weights.sum(axis=-1, keepdims=True)) @ v64
    return answer


def padding_mask(length: int, total: int) -> mx.array:
    """Two rows of a batch, the first of which has 3 unused places on the left."""
    causal = mx.arange(total - length, total)[:, None] >= mx.arange(total)
    return causal & (mx.array([3, 0])[:, None, None, None] <= mx.arange(total))


MASKS: dict[str, Callable[[int, int], Mask]] = {
    "none": lambda length, total: None,
    "causal": lambda length, total: "causal",
    "padding": padding_mask,
    "added": lambda length, total: noise(9, 2, 4, length, total),
    "forbidding": lambda length, total: mx.where(padding_mask(length, total), 0.0, -math.inf),
    "one for all": lambda length, total: noise(8, length, 1) > -9,
}


# -- attention ---------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("length", "total"), [(1, 1), (1, 700), (7, 7), (5, 513), (40, 1300)])
@pytest.mark.parametrize("bits", BITS)
def test_attention_is_that_on_the_unpacked_numbers(
    bits: int, length: int, total: int, mask: str
) -> None:
    scheme = Affine(bits, 32)
    queries = noise(1, 2, 4, length, 64)
    keys = scheme.quantize_keys(noise(2, 2, 2, total, 64))
    values = scheme.quantize_values(noise(3, 2, 2, total, 64))
    given = MASKS[mask](length, total)
    if mask in ("padding", "forbidding") and total <= 7:
        given = MASKS["causal"](length, total)  # some rows would see nothing
    answer = scheme.attend(queries, keys, values, scale=0.3, mask=given)
    wanted = naive(queries, numbers(scheme, keys), numbers(scheme, values), 0.3, given)
    assert answer.dtype == mx.float32 and answer.shape == queries.shape
    assert np.abs(np.array(answer) - wanted).max() < 1e-5


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("reader", [UnpackedAffine, GroupRows, PackedTiles])
@pytest.mark.parametrize("on_cpu", [True, False], ids=["CPU", "GPU"])
def test_every_way_to_read_gives_the_same(
    reader: type[UnpackedAffine],
    bits: int,
    group_size: int,
    on_cpu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the tile: a tile is only how much is read at a time."""
    monkeypatch.setattr(device, "is_cpu", lambda: on_cpu)
    scheme = Affine(bits, group_size)
    queries = noise(1, 1, 6, 2, 128)
    keys = scheme.quantize_keys(noise(2, 1, 2, 50, 128))
    values = scheme.quantize_values(noise(3, 1, 2, 50, 256))
    wanted = naive(queries, numbers(scheme, keys), numbers(scheme, values), 0.1, "causal")
    for size in (50, 64, 49, 16, 1):
        read = reader(keys, values, size, bits, group_size)
        answer = tiles.attend(queries, read, scale=0.1, mask="causal")
        assert np.abs(np.array(answer) - wanted).max() < 1e-5


def test_the_fastest_reader_is_taken() -> None:
    scheme = Affine(4, 64)
    keys = scheme.quantize_keys(noise(2, 1, 2, 50, 64))
    for length, kind in ((1, GroupRows), (200, UnpackedAffine)):
        read = affine.tiles_for(noise(1, 1, 6, length, 64), keys, keys, 4, 64)
        assert type(read) is kind and read.size < 10_000


@pytest.mark.parametrize("length", [1, 40])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_half_precision_goes_in_and_comes_out(dtype: mx.Dtype, length: int) -> None:
    scheme = Affine(8, 64)
    queries = noise(1, 1, 4, length, 64).astype(dtype)
    keys = scheme.quantize_keys(noise(2, 1, 2, 90, 64).astype(dtype))
    assert [array.dtype for array in keys] == [mx.uint32, dtype, dtype]
    answer = scheme.attend(queries, keys, keys, scale=0.2, mask="causal")
    assert answer.dtype == dtype
    wanted = naive(queries, numbers(scheme, keys), numbers(scheme, keys), 0.2, "causal")
    assert np.abs(np.array(answer.astype(mx.float32)) - wanted).max() < 0.02


@pytest.mark.parametrize("total", [3, 700])
@pytest.mark.parametrize("length", [1, 40])
@pytest.mark.parametrize("nothing", [False, -math.inf])
def test_a_row_that_sees_nothing_is_finite_and_leaves_the_others_alone(
    nothing: bool | float, length: int, total: int
) -> None:
    """Padding is masked off throughout, and zeros are what it is made of."""
    scheme = Affine(4, 32)
    queries = noise(1, 2, 4, length, 64)
    packed = scheme.quantize_keys(noise(2, 2, 2, total, 64))
    keys = tuple(mx.concatenate([mx.zeros_like(a[:1]), a[1:]]) for a in packed)
    sees = mx.array([[[[nothing]]], [[[not nothing if nothing is False else 0.0]]]])
    mask = mx.broadcast_to(sees, (2, 1, length, total))
    answer = scheme.attend(queries, keys, keys, scale=0.3, mask=mask)
    assert plain(mx.isfinite(answer).all())
    unpacked = numbers(scheme, keys)
    wanted = naive(queries[1:], unpacked[1:], unpacked[1:], 0.3, None)
    assert np.abs(np.array(answer[1:]) - wanted).max() < 1e-5


def test_scores_may_be_very_far_apart() -> None:
    """A tile of tiny scores after one of huge ones, and the other way round."""
    scheme = Affine(8, 32)
    loud = mx.concatenate([noise(1, 1, 1, 600, 32) * 200, noise(2, 1, 1, 600, 32)], axis=2)
    for keys in (loud, loud[:, :, ::-1]):
        packed = scheme.quantize_keys(keys)
        values = scheme.quantize_values(noise(3, 1, 1, 1200, 32))
        queries = noise(4, 1, 1, 40, 32)
        answer = scheme.attend(queries, packed, values, scale=1.0, mask=None)
        wanted = naive(queries, numbers(scheme, packed), numbers(scheme, values), 1.0, None)
        assert np.abs(np.array(answer) - wanted).max() < 1e-3


def test_no_argument_is_changed() -> None:
    scheme = Affine(4, 64)
    for length in (1, 40):
        queries, keys = noise(1, 1, 4, length, 64), scheme.quantize_keys(noise(2, 1, 2, 90, 64))
        before = [plain(queries), *(plain(a) for a in keys)]
        scheme.attend(queries, keys, keys, scale=0.2, mask="causal")
        assert [plain(queries), *(plain(a) for a in keys)] == before


def peak_of(attend: Callable[[], mx.array]) -> int:
    """Bytes that it takes on top of what is there."""
    mx.eval(attend())
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(attend())
    return mx.get_peak_memory() - before


@pytest.mark.parametrize("reader", [UnpackedAffine, GroupRows])
def test_tiles_take_no_more_memory_however_many_they_are(reader: type[UnpackedAffine]) -> None:
    """None is unpacked long before its turn."""
    scheme = Affine(4, 64)
    queries = noise(1, 1, 4, 1, 64)
    peaks = []
    for total in (8_192, 32_768):
        keys = scheme.quantize_keys(noise(2, 1, 4, total, 64))
        mx.eval(keys, queries)
        read = reader(keys, keys, 512, 4, 64)
        peaks.append(peak_of(partial(tiles.attend, queries, read, scale=0.2, mask=None)))
    full_precision = 2 * 4 * 32_768 * 64 * 4
    assert peaks[1] < 1.5 * peaks[0] and peaks[1] < full_precision / 8


def test_no_token_unpacks_a_whole_layer() -> None:
    scheme = Affine(4, 64)
    queries, keys = noise(1, 1, 4, 1, 64), scheme.quantize_keys(noise(2, 1, 4, 32_768, 64))
    mx.eval(keys, queries)
    full_precision = 2 * 4 * 32_768 * 64 * 4
    peak = peak_of(partial(scheme.attend, queries, keys, keys, scale=0.2, mask=None))
    assert peak < full_precision / 3


def test_a_chunk_takes_less_memory_than_plain_attention() -> None:
    scheme = Affine(4, 64)
    queries, keys = noise(1, 1, 4, 256, 64), noise(2, 1, 4, 4_096, 64)
    packed = scheme.quantize_keys(keys)
    mx.eval(queries, keys, packed)
    ours = peak_of(lambda: scheme.attend(queries, packed, packed, scale=0.2, mask="causal"))
    theirs = peak_of(lambda: attention(queries, keys, keys, scale=0.2, mask="causal"))
    assert ours < 0.8 * theirs


# -- what is stored ----------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
def test_columns_are_the_codes_bit_by_bit(bits: int) -> None:
    words = mx.quantize(noise(1, 2, 3, 64), group_size=32, bits=bits)[0]
    n = affine.count(bits)
    columns = affine.unpack_columns(words, bits)
    assert len(columns) == n
    for row, packed in zip(
        np.array(mx.stack(list(columns), axis=-1)).reshape(6, 64),
        np.array(words).reshape(6, -1),
        strict=True,
    ):
        stream = int.from_bytes(packed.astype("<u4").tobytes(), "little")
        assert row.tolist() == [(stream >> (bits * i)) % (1 << bits) for i in range(64)]


@pytest.mark.parametrize("bits", BITS)
def test_the_bytes_of_a_token_depend_on_it_alone(bits: int) -> None:
    """So a chunk of any length, and a row of any batch, gives the same bytes."""
    scheme = Affine(bits, 32)
    x = noise(1, 3, 2, 70, 64)
    whole = scheme.quantize_keys(x)
    rng = random.Random(bits)
    for _ in range(8):
        row, start = rng.randrange(3), rng.randrange(69)
        stop = rng.randrange(start + 1, 71)
        part = scheme.quantize_keys(x[row : row + 1, :, start:stop])
        for a, b in zip(whole, part, strict=True):
            assert plain(mx.array_equal(a[row : row + 1, :, start:stop], b))


def test_what_mlx_cannot_do_is_refused_in_words() -> None:
    for bits in (1, 5, 7, 16):
        with pytest.raises(ValueError, match=f"2, 3, 4, 6 or 8 bits, not to {bits}"):
            Affine(bits)
    with pytest.raises(ValueError, match="groups of 32, 64 or 128, not of 16"):
        Affine(4, 16)
    Affine(4, 64).check(128)
    for head_dim, way_out in ((96, "32 would"), (32, "32 would"), (80, "no size"), (16, "no size")):
        with pytest.raises(ValueError, match=f"head dim of {head_dim}; {way_out}"):
            Affine(4, 64).check(head_dim)
    with pytest.raises(ValueError, match="32 or 64 would"):
        Affine(4, 128).check(192)
