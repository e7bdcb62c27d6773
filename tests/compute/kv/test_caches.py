"""The quantised caches against mlx-lm's plain ones, and the join laws of their codec.

What a cache does with rows, padding and blocks has nothing to do with what a token looks like in
it: with a scheme that holds tokens as they came, it must do what mlx-lm's own caches do.
"""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.base import GROWTH_STEP, Arrays, Codec, Row, spare_tail
from omlx_server.compute.codecs.registry import codec_of
from omlx_server.compute.kv.affine import Affine
from omlx_server.compute.kv.base import Mask, Scheme
from omlx_server.compute.kv.caches import BatchPackedKVCache, PackedKVCache
from omlx_server.compute.kv.classes import BATCHES, new_cache
from omlx_server.compute.kv.rotated import Rotated
from omlx_server.compute.kv.turboquant import TurboQuant
from tests.arrays import plain
from tests.compute.kv.schemes import SCHEMES, bytes_of_token, every_scheme, same_bits

HEADS, WIDTH = 2, 64


class AsItCame:
    """Holds keys and values as they are."""

    name = "as it came"

    def check(self, head_dim: int) -> None: ...

    def quantize_keys(self, x: mx.array) -> Arrays:
        return (x,)

    quantize_values = quantize_keys

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, *, scale: float, mask: Mask
    ) -> mx.array:
        raise NotImplementedError


def token_arrays(seed: int, start: int, stop: int) -> tuple[mx.array, mx.array]:
    """Keys and values of tokens [start, stop) of a sequence: every token has its own."""
    columns = [
        mx.random.normal((2, 1, HEADS, 1, WIDTH), key=mx.random.key(1000 * seed + token))
        for token in range(start, stop)
    ]
    both = mx.concatenate(columns, axis=3) if columns else mx.zeros((2, 1, HEADS, 0, WIDTH))
    return both[0], both[1]


def fed(cache: Any, seed: int, start: int, stop: int) -> Any:
    """The cache with tokens put into it in one step."""
    if stop > start:
        cache.update_and_fetch(*token_arrays(seed, start, stop))
        mx.eval(cache.state)
    return cache


def held(cache: Any) -> Arrays:
    """The tokens of a solo cache, without the unused places."""
    if isinstance(cache, KVCache):
        return cache.keys[..., : cache.offset, :], cache.values[..., : cache.offset, :]
    return tuple(a[..., : cache.offset, :] for a in (*cache.keys, *cache.values))


# -- the same as mlx-lm's ----------------------------------------------------------------


def step(rows: Sequence[tuple[int, int]], width: int) -> tuple[mx.array, mx.array]:
    """The next `width` tokens of rows that are given as (seed, tokens so far)."""
    columns = [token_arrays(seed, length, length + width) for seed, length in rows]
    keys, values = (mx.concatenate(list(arrays)) for arrays in zip(*columns, strict=True))
    return keys, values


def check_same(ours: BatchPackedKVCache, theirs: Any, rows: Sequence[tuple[int, int]]) -> None:
    """The same places, padding and masks, and in every row the tokens that belong there."""
    assert ours.size() == theirs.size()
    assert plain(ours.offset) == plain(theirs.offset) == [length for _, length in rows]
    assert plain(ours.left_padding) == plain(theirs.left_padding)
    assert ours.empty() == theirs.empty()
    for count in (1, 3):
        for window in (None, 4):
            mask = ours.make_mask(count, window_size=window)
            assert same_bits((mask,), (theirs.make_mask(count, window_size=window),))
    if not ours.empty():
        for view, array in zip(ours.keys_and_values(), theirs.keys_and_values(), strict=True):
            assert view.scheme is ours.scheme and view.arrays[0].shape == array.shape
    for index, (seed, length) in enumerate(rows):
        alone = ours.extract(index)
        assert alone.offset == length
        if not ours.empty():
            assert same_bits(held(alone), token_arrays(seed, 0, length))
            assert same_bits(held(alone), held(theirs.extract(index)))


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_goes_through_the_same_as_mlx_lms(seed: int) -> None:
    """Random merges, steps, padded prefills, joins, leaves and trims, side by side."""
    rng = random.Random(seed)
    newcomer = iter(range(1, 1000))

    def arrivals(count: int) -> tuple[BatchPackedKVCache, Any, list[tuple[int, int]]]:
        rows = [(next(newcomer), rng.choice([0, 1, 5, 40, 255, 256, 300])) for _ in range(count)]
        ours = [fed(PackedKVCache(AsItCame()), number, 0, length) for number, length in rows]
        theirs = [fed(KVCache(), number, 0, length) for number, length in rows]
        return ours[0].merge(ours), theirs[0].merge(theirs), rows

    ours, theirs, rows = arrivals(rng.choice([1, 3]))
    for _ in range(10):
        match rng.choice(["step", "step", "padded", "join", "leave", "trim"]):
            case "step":
                new = step(rows, width := rng.choice([1, 2, 250]))
                for cache in (ours, theirs):
                    cache.update_and_fetch(*new)
                rows = [(number, length + width) for number, length in rows]
            case "padded":
                lengths = [rng.randrange(1, 9) for _ in rows]
                padding = [max(lengths) - length for length in lengths]
                new = step(rows, max(lengths))
                for cache in (ours, theirs):
                    cache.prepare(lengths=lengths, right_padding=padding)
                    cache.update_and_fetch(*new)
                    cache.finalize()
                rows = [
                    (number, length + more)
                    for (number, length), more in zip(rows, lengths, strict=True)
                ]
            case "join":
                more, theirs_more, new_rows = arrivals(rng.choice([1, 2]))
                ours.extend(more)
                theirs.extend(theirs_more)
                rows += new_rows
            case "leave":
                keep = sorted(rng.sample(range(len(rows)), rng.randrange(1, len(rows) + 1)))
                ours.filter(keep)
                theirs.filter(keep)
                rows = [rows[index] for index in keep]
            case "trim" if all(length for _, length in rows):
                assert ours.trim(1) == theirs.trim(1) == 1
                rows = [(number, length - 1) for number, length in rows]
        check_same(ours, theirs, rows)


def test_one_sequence_goes_through_the_same_as_mlx_lms() -> None:
    ours, theirs = PackedKVCache(AsItCame()), KVCache()
    assert ours.empty() and theirs.empty() and ours.nbytes == theirs.nbytes == 0
    at = 0
    for width in (1, 1, 5, 256, 300, 1):
        for cache in (ours, theirs):
            fed(cache, 1, at, at + width)
        at += width
        assert (ours.offset, ours.size()) == (theirs.offset, theirs.size()) == (at, at)
        assert ours.nbytes == theirs.nbytes
        for view, array in zip(ours.keys_and_values(), theirs.keys_and_values(), strict=True):
            assert same_bits(view.arrays, (array,))
        assert same_bits(held(ours), held(theirs))
        for as_array, window in ((False, None), (True, None), (False, 2)):
            for count in (1, 3):
                mask = ours.make_mask(count, return_array=as_array, window_size=window)
                wanted = theirs.make_mask(count, return_array=as_array, window_size=window)
                if isinstance(mask, mx.array):
                    assert same_bits((mask,), (wanted,))
                else:
                    assert mask == wanted
        assert ours.is_trimmable() and ours.trim(1) == theirs.trim(1) == 1
        at -= 1
    assert ours.trim(10_000) == at and ours.offset == 0
    assert ours.step == theirs.step == GROWTH_STEP


def test_rows_padded_on_the_left_from_the_start() -> None:
    batch = PackedKVCache(AsItCame()).merge([PackedKVCache(AsItCame()) for _ in range(2)])
    batch.prepare(left_padding=[2, 0])
    assert plain(batch.offset) == [-2, 0]
    keys = mx.concatenate([token_arrays(seed, 0, 5)[0] for seed in (1, 2)])
    batch.update_and_fetch(keys, keys)
    assert plain(batch.offset) == [3, 5]
    assert same_bits(held(batch.extract(0))[:1], (keys[:1, :, 2:],))
    with pytest.raises(ValueError, match="left padding"):
        batch.prepare(left_padding=[1, 1])


def test_a_new_batch_has_room_for_the_next_tokens() -> None:
    """Its first step does not copy all of its rows once more."""
    for length in (0, 5, GROWTH_STEP - 1, GROWTH_STEP):
        batch, other = (fed(PackedKVCache(AsItCame()), 1, 0, length + 1) for _ in range(2))
        batch, other = batch.merge([batch]), other.merge([other])
        for _ in range(2):
            places = batch.keys[0].shape[2]
            fed(batch, 1, batch.size(), batch.size() + 1)
            assert batch.keys[0].shape[2] == places
            batch.extend(other)
            batch.filter([0])


# -- what the codec makes of it ----------------------------------------------------------


def cut_all(codec: Codec, cache: PackedKVCache, size: int) -> list[Arrays]:
    stop = cache.offset
    return [
        codec.cut(cache, Row(0, stop), start, min(start + size, stop))
        for start in range(0, stop, size)
    ]


@every_scheme
def test_joined_blocks_are_the_cache_bit_for_bit(scheme: Scheme) -> None:
    """Also where the cache is cut within a block, and written to by steps of any length."""
    cache = new_cache(scheme)
    for start, stop in ((0, 5), (5, 37), (37, 38), (38, 70)):
        fed(cache, 1, start, stop)
    codec = codec_of(cache)
    for size in (8, 16, 64):
        parts = cut_all(codec, cache, size)
        for stop in (1, 8, 37, 64, 70):
            kept = parts[: -(-stop // size)]
            kept[-1] = tuple(a[..., : stop - (len(kept) - 1) * size, :] for a in kept[-1])
            joined = codec.join(new_cache(scheme), kept, stop)
            whole = fed(new_cache(scheme), 1, 0, stop)
            assert type(joined) is type(cache) and joined.scheme is cache.scheme
            assert joined.offset == stop
            assert same_bits(held(joined), held(whole))
            places = joined.keys[0].shape[2]
            assert places == stop + spare_tail(stop) and places % GROWTH_STEP == 0
            before = held(joined)
            fed(joined, 1, stop, stop + 3)
            assert joined.keys[0].shape[2] == places, "the first new token copied the layer"
            assert same_bits(before, held(whole)), "the blocks were written to"
            assert same_bits(held(joined), held(fed(whole, 1, stop, stop + 3)))


@every_scheme
def test_rows_of_a_batch_are_cut_as_if_they_were_alone(scheme: Scheme) -> None:
    """After rows of other lengths joined and left, and a prefill that was padded on the right."""
    lengths = [3, 30, 17]
    rows = [fed(new_cache(scheme), seed, 0, n) for seed, n in enumerate(lengths)]
    batch = rows[0].merge(rows)
    assert type(batch) is BATCHES[type(scheme)]
    padding = [4, 0, 2]
    batch.prepare(lengths=[5, 9, 7], right_padding=padding)
    batch.update_and_fetch(*step(list(enumerate(lengths)), 9))
    batch.finalize()
    lengths = [8, 39, 24]
    late = [fed(new_cache(scheme), seed, 0, n) for seed, n in ((3, 50), (4, 1))]
    batch.extend(late[0].merge(late))
    lengths += [50, 1]
    batch.filter([0, 2, 3, 4])
    kept = [(seed, lengths[seed]) for seed in (0, 2, 3, 4)]
    batch.update_and_fetch(*step(kept, 1))
    codec = codec_of(batch)
    assert codec is codec_of(rows[0])
    for index, (seed, length) in enumerate(kept):
        alone = fed(new_cache(scheme), seed, 0, length + 1)
        for start, stop in ((0, length + 1), (length // 2, length), (length, length + 1)):
            cut = codec.cut(batch, Row(index, length + 1), start, stop)
            assert same_bits(cut, codec.cut(alone, Row(0, length + 1), start, stop))
        back = batch.extract(index)
        assert type(back) is type(alone) and same_bits(held(back), held(alone))


@every_scheme
def test_solo_caches_stay_usable_after_they_went_into_a_batch(scheme: Scheme) -> None:
    solo = fed(new_cache(scheme), 1, 0, 5)
    batch = solo.merge([solo, solo])
    batch.update_and_fetch(*step([(2, 5), (3, 5)], 1))
    mx.eval(batch.state)
    assert same_bits(held(fed(solo, 1, 5, 6)), held(fed(new_cache(scheme), 1, 0, 6)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@every_scheme
def test_a_token_takes_the_bytes_of_its_format(scheme: Scheme, dtype: mx.Dtype) -> None:
    cache = new_cache(scheme)
    keys, values = token_arrays(1, 0, GROWTH_STEP)
    cache.update_and_fetch(keys.astype(dtype), values.astype(dtype))
    wanted = bytes_of_token(scheme, HEADS, WIDTH, dtype.size)
    assert cache.nbytes / GROWTH_STEP == pytest.approx(wanted, rel=0.05)
    full = 2 * HEADS * WIDTH * dtype.size
    assert cache.nbytes / GROWTH_STEP < 0.75 * full or scheme.name.count("8")


def test_schemes_are_told_apart_by_class_and_by_format() -> None:
    different: list[Scheme] = [
        *SCHEMES,
        Affine(4, 64),
        Rotated(Affine(4, 32), seed=1),
        TurboQuant(4, 4, seed=1),
    ]
    assert len({codec_of(new_cache(s)).describe(new_cache(s)) for s in different}) == len(different)
    kinds = [
        (type(s), type(new_cache(s)), type(new_cache(s).merge([new_cache(s)]))) for s in SCHEMES
    ]
    assert len({kind for kind, _, _ in kinds}) == len(set(kinds)) == 3
    assert len({kind for _, *pair in kinds for kind in pair}) == 6


def test_quantised_caches_batch_and_pad() -> None:
    for scheme in SCHEMES:
        assert cache_ops.can_batch([new_cache(scheme)])
        assert not cache_ops.is_recurrent([new_cache(scheme)])
