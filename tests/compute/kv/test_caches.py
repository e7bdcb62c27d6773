"""Our caches of full attention against mlx-lm's, rows of batches against rows that are alone, and
the join laws of their codec.

What a cache does with rows and blocks has nothing to do with what a token looks like in it: most
tests take the scheme that holds tokens as they came.
"""

import copy
import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.base import Arrays, CacheRow, Codec, spare_tail
from omlx_server.compute.codecs.registry import codec_of
from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.rows import RowsKVCache
from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.plain import Plain
from omlx_server.compute.kv.schemes.rotated import Rotated
from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.core.memory.kv import GROWTH, longest_in_group
from tests.arrays import drawn_tokens, plain
from tests.compute.kv.every_scheme import SCHEMES, bytes_of_token, every_scheme, same_bits

HEADS, WIDTH = 2, 64


def token_arrays(seed: int, start: int, stop: int) -> tuple[mx.array, mx.array]:
    """Keys and values of tokens [start, stop) of a sequence: every token has its own."""
    return drawn_tokens(seed, start, stop, HEADS, WIDTH)


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


def check_rows(batch: RowsKVCache, rows: Sequence[tuple[int, int]]) -> None:
    """In every row the tokens that belong there, and nothing of others; no more places than those
    of rows of its length class."""
    lengths = [length for _, length in rows]
    assert batch.lengths == lengths == plain(batch.offset)
    assert batch.size() == max(lengths)
    mx.eval(batch.state)
    for index, (seed, length) in enumerate(rows):
        if length:
            assert same_bits(batch.row(index), token_arrays(seed, 0, length))
    token = 2 * HEADS * WIDTH * 4
    reached = [max(n for n in lengths if n <= longest_in_group(length)) for length in lengths]
    assert batch.nbytes <= token * sum(length + 2 * GROWTH for length in reached)


@pytest.mark.parametrize("seed", range(40))
def test_rows_keep_their_own_tokens_whatever_happens_to_others(seed: int) -> None:
    """Random merges, steps, padded prefills, joins, leaves and trims."""
    rng = random.Random(seed)
    newcomer = iter(range(1, 1000))

    def arrivals(count: int) -> tuple[RowsKVCache, list[tuple[int, int]]]:
        rows = [
            (next(newcomer), rng.choice([0, 1, 5, 40, 255, 256, 300, 600])) for _ in range(count)
        ]
        solo = [fed(PackedKVCache(Plain()), number, 0, length) for number, length in rows]
        return solo[0].merge(solo), rows

    batch, rows = arrivals(rng.choice([1, 3]))
    for _ in range(10):
        match rng.choice(["step", "step", "padded", "join", "leave", "trim"]):
            case "step":
                new = step(rows, width := rng.choice([1, 2, 250]))
                batch.update_and_fetch(*new)
                rows = [(number, length + width) for number, length in rows]
            case "padded":
                lengths = [rng.randrange(1, 9) for _ in rows]
                new = step(rows, max(lengths))
                batch.prepare(lengths=lengths, right_padding=[max(lengths) - n for n in lengths])
                batch.update_and_fetch(*new)
                batch.finalize()
                rows = [(n, had + more) for (n, had), more in zip(rows, lengths, strict=True)]
            case "join":
                more, new_rows = arrivals(rng.choice([1, 2]))
                batch.extend(more)
                rows += new_rows
            case "leave":
                keep = sorted(rng.sample(range(len(rows)), rng.randrange(1, len(rows) + 1)))
                batch.filter(keep)
                rows = [rows[index] for index in keep]
            case "trim" if all(length for _, length in rows):
                assert batch.trim(1) == 1
                rows = [(number, length - 1) for number, length in rows]
        check_rows(batch, rows)


@pytest.mark.parametrize("seed", range(20))
def test_rows_attend_as_if_they_were_alone(seed: int) -> None:
    """Through MLX's function, as models call it: with and without a mask, and with sinks."""
    dispatch.install()
    rng = random.Random(seed)
    rows = [(n, rng.choice([1, 30, 31, 300, 301, 900])) for n in range(rng.choice([1, 2, 4]))]
    solo = [fed(PackedKVCache(Plain()), number, 0, length) for number, length in rows]
    batch, count = solo[0].merge(solo), rng.choice([1, 3])
    mask = batch.make_mask(count)
    keys, values = batch.update_and_fetch(*step(rows, count))
    queries = mx.random.normal((len(rows), 2 * HEADS, count, WIDTH), key=mx.random.key(seed))
    sinks = rng.choice([None, mx.array([0.5, -1.0, 2.0, 0.0])])
    got = attended(queries, keys, values, mask, sinks)
    for index, (number, length) in enumerate(rows):
        alone = fed(PackedKVCache(Plain()), number, 0, length)
        mask = alone.make_mask(count)
        keys, values = alone.update_and_fetch(*step([(number, length)], count))
        expected = attended(queries[index : index + 1], keys, values, mask, sinks)
        assert plain(mx.abs(got[index] - expected[0]).max()) < 1e-5


def attended(
    queries: mx.array, keys: Any, values: Any, mask: Any, sinks: mx.array | None
) -> mx.array:
    answer: mx.array = mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=0.2, mask=mask, sinks=sinks
    )
    mx.eval(answer)
    return answer


def test_rows_of_one_length_have_no_mask() -> None:
    solo = [fed(PackedKVCache(Plain()), number, 0, 40) for number in range(3)]
    batch = solo[0].merge(solo)
    assert batch.make_mask(1).of(1, (41, 41, 41)) is None
    assert batch.make_mask(5).of(5, (45, 45, 45)) == "causal"
    masks = batch.make_mask(1)
    assert masks.of(1, (41, 40)) is masks.of(1, (41, 40)), "each layer made its own mask"
    for options in ({"return_array": True}, {"window_size": 4}):
        with pytest.raises(ValueError, match="one mask"):
            batch.make_mask(1, **options)


def test_positions_are_one_array_for_all_layers_of_a_step() -> None:
    solo = [fed(PackedKVCache(Plain()), 1, 0, length) for length in (3, 5)]
    layers = [PackedKVCache.merge(solo) for _ in range(2)]
    first = layers[0].offset
    assert layers[1].offset is first and plain(first) == [3, 5]
    for layer in layers:
        layer.update_and_fetch(*step([(1, 3), (1, 5)], 1))
    assert layers[1].offset is layers[0].offset and plain(layers[0].offset) == [4, 6]
    assert plain(first) == [3, 5]


def test_a_long_row_costs_short_ones_nothing() -> None:
    lengths = [5, 4000, 7, 9]
    solo = [fed(PackedKVCache(Plain()), 1, 0, 1) for _ in lengths]
    for cache, length in zip(solo, lengths, strict=True):
        cache.trim(1)
        cache.update_and_fetch(*(mx.zeros((1, HEADS, length, WIDTH)) for _ in range(2)))
    batch = solo[0].merge(solo)
    mx.eval(batch.state)
    token = 2 * HEADS * WIDTH * 4
    assert batch.nbytes <= token * (4096 + 3 * GROWTH)


def test_who_joins_or_leaves_moves_nobody_of_another_length() -> None:
    long = fed(PackedKVCache(Plain()), 1, 0, 2000)
    batch = long.merge([long])
    mx.eval(batch.state)
    del long
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    short = fed(PackedKVCache(Plain()), 2, 0, 40)
    batch.extend(short.merge([short]))
    batch.filter([0])
    mx.eval(batch.state)
    assert mx.get_peak_memory() - before < batch.nbytes / 2


def test_one_sequence_goes_through_the_same_as_mlx_lms() -> None:
    ours, theirs = PackedKVCache(Plain()), KVCache()
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
    assert theirs.step == GROWTH


def test_a_new_batch_has_room_for_the_next_tokens() -> None:
    """Its first step does not copy all of its rows once more."""
    for length in (5, GROWTH - 2, GROWTH - 1, GROWTH):
        one, other = (fed(PackedKVCache(Plain()), 1, 0, length) for _ in range(2))
        batch = one.merge([one, other])
        before = batch.nbytes
        batch.update_and_fetch(*step([(1, length), (1, length)], 1))
        assert batch.nbytes == before


# -- what the codec makes of it ----------------------------------------------------------


def cut_all(codec: Codec, cache: PackedKVCache, size: int) -> list[Arrays]:
    stop = cache.offset
    return [
        codec.cut(cache, CacheRow(0, stop), start, min(start + size, stop))
        for start in range(0, stop, size)
    ]


@every_scheme
def test_joined_blocks_are_the_cache_bit_for_bit(scheme: Scheme) -> None:
    """Also where the cache is cut within a block, and written to by steps of any length."""
    cache = PackedKVCache(scheme)
    for start, stop in ((0, 5), (5, 37), (37, 38), (38, 70)):
        fed(cache, 1, start, stop)
    codec = codec_of(cache)
    for size in (8, 16, 64):
        parts = cut_all(codec, cache, size)
        for stop in (1, 8, 37, 64, 70):
            kept = parts[: -(-stop // size)]
            kept[-1] = tuple(a[..., : stop - (len(kept) - 1) * size, :] for a in kept[-1])
            joined = codec.join(PackedKVCache(scheme), kept, stop)
            whole = fed(PackedKVCache(scheme), 1, 0, stop)
            assert type(joined) is type(cache) and joined.scheme is cache.scheme
            assert joined.offset == stop
            assert same_bits(held(joined), held(whole))
            places = joined.keys[0].shape[2]
            assert places == stop + spare_tail(stop) and places % GROWTH == 0
            before = held(joined)
            fed(joined, 1, stop, stop + 3)
            assert joined.keys[0].shape[2] == places, "the first new token copied the layer"
            assert same_bits(before, held(whole)), "the blocks were written to"
            assert same_bits(held(joined), held(fed(whole, 1, stop, stop + 3)))


@every_scheme
def test_rows_of_a_batch_are_cut_as_if_they_were_alone(scheme: Scheme) -> None:
    """After rows of other lengths joined and left, and a prefill that was padded on the right."""
    lengths = [3, 30, 17]
    rows = [fed(PackedKVCache(scheme), seed, 0, n) for seed, n in enumerate(lengths)]
    batch = rows[0].merge(rows)
    assert type(batch) is RowsKVCache
    padding = [4, 0, 2]
    batch.prepare(lengths=[5, 9, 7], right_padding=padding)
    batch.update_and_fetch(*step(list(enumerate(lengths)), 9))
    batch.finalize()
    lengths = [8, 39, 24]
    late = [fed(PackedKVCache(scheme), seed, 0, n) for seed, n in ((3, 50), (4, 1))]
    batch.extend(late[0].merge(late))
    lengths += [50, 1]
    batch.filter([0, 2, 3, 4])
    kept = [(seed, lengths[seed]) for seed in (0, 2, 3, 4)]
    batch.update_and_fetch(*step(kept, 1))
    codec = codec_of(batch)
    assert codec is codec_of(rows[0])
    for index, (seed, length) in enumerate(kept):
        alone = fed(PackedKVCache(scheme), seed, 0, length + 1)
        for start, stop in ((0, length + 1), (length // 2, length), (length, length + 1)):
            cut = codec.cut(batch, CacheRow(index, length + 1), start, stop)
            assert same_bits(cut, codec.cut(alone, CacheRow(0, length + 1), start, stop))
        assert same_bits(batch.row(index), held(alone))


@every_scheme
def test_solo_caches_stay_usable_after_they_went_into_a_batch(scheme: Scheme) -> None:
    solo = fed(PackedKVCache(scheme), 1, 0, 5)
    batch = solo.merge([solo, solo])
    batch.update_and_fetch(*step([(2, 5), (3, 5)], 1))
    mx.eval(batch.state)
    assert same_bits(held(fed(solo, 1, 5, 6)), held(fed(PackedKVCache(scheme), 1, 0, 6)))


@every_scheme
def test_a_deep_copy_is_written_to_on_its_own(scheme: Scheme) -> None:
    solo = fed(PackedKVCache(scheme), 1, 0, 5)
    twin = copy.deepcopy(solo)
    fed(twin, 2, 5, 9)
    assert same_bits(held(fed(solo, 1, 5, 6)), held(fed(PackedKVCache(scheme), 1, 0, 6)))
    assert twin.offset == 9


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@every_scheme
def test_a_token_takes_the_bytes_of_its_format(scheme: Scheme, dtype: mx.Dtype) -> None:
    cache = PackedKVCache(scheme)
    keys, values = token_arrays(1, 0, GROWTH)
    cache.update_and_fetch(keys.astype(dtype), values.astype(dtype))
    wanted = bytes_of_token(scheme, HEADS, WIDTH, dtype.size)
    assert cache.nbytes / GROWTH == pytest.approx(wanted, rel=0.05)
    full = 2 * HEADS * WIDTH * dtype.size
    assert cache.nbytes / GROWTH < 0.75 * full or scheme.name.count("8")


def test_schemes_are_told_apart_by_their_format() -> None:
    different: list[Scheme] = [
        *SCHEMES,
        Affine(4, 64),
        Rotated(Affine(4, 32), seed=1),
        TurboQuant(4, 4, seed=1),
    ]
    assert len({codec_of(PackedKVCache(s)).describe(PackedKVCache(s)) for s in different}) == len(
        different
    )


def test_quantised_caches_batch_and_pad() -> None:
    for scheme in SCHEMES:
        assert cache_ops.can_batch([PackedKVCache(scheme)])
        assert not cache_ops.is_recurrent([PackedKVCache(scheme)])
