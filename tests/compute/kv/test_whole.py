"""Caches for models that compute with keys and values by themselves: arrays of all tokens."""

import random

import mlx.core as mx
import pytest

from omlx_server.compute.kv.latent import WholeKVCache
from omlx_server.compute.kv.rows import RowsKVCache
from omlx_server.compute.kv.schemes.plain import Plain
from omlx_server.compute.kv.spans import Runs, Span
from tests.arrays import plain
from tests.compute.kv.every_scheme import same_bits
from tests.compute.kv.sequences import Tokens, behind, fed, in_rows, segment, tokens


def whole(seed: int, start: int, stop: int, *spans: Span) -> WholeKVCache:
    """A cache of these tokens, behind spans."""
    cache = WholeKVCache(Plain())
    cache.put((), (), 0, spans)
    fed(cache, tokens(seed, start, stop))
    return cache


def batch_of(rows: list[WholeKVCache]) -> RowsKVCache:
    return rows[0].merge(rows)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_a_model_gets_all_tokens_of_each_row(seed: int, count: int) -> None:
    """Rows of all lengths, on spans and on none, that joined and left."""
    rng, runs = random.Random(seed), Runs()
    first = whole(0, 0, 40)
    [span] = segment(runs, first, 0, 32).spans()
    [longer] = segment(runs, whole(1, 32, 60, span), 32, 48).spans()
    begun = {0: [], 32: [tokens(0, 0, 32)], 48: [tokens(0, 0, 32), tokens(1, 32, 48)]}
    spans: dict[int, tuple[Span, ...]] = {0: (), 32: (span,), 48: (span, longer)}
    made, expected = list[WholeKVCache](), list[Tokens]()
    for number in range(2, 2 + rng.choice([1, 2, 6])):
        start = rng.choice([0, 0, 32, 48])
        stop = start + rng.choice([1, 7, 8, 300])
        made.append(whole(number, start, stop, *spans[start]))
        expected.append(behind(*begun[start], tokens(number, start, stop + count)))
    batch = batch_of(made[:1])
    for late in made[1:]:
        batch.extend(batch_of([late]))
    kept = rng.sample(range(len(made)), rng.randrange(1, len(made) + 1))
    batch.filter(kept)
    expected = [expected[row] for row in kept]
    lengths = [keys.shape[2] for keys, _ in expected]
    new = [(k[:, :, -count:], v[:, :, -count:]) for k, v in expected]
    keys, values = batch.update_and_fetch(*in_rows(*new))
    assert keys.shape == values.shape == (len(kept), *expected[0][0].shape[1:2], max(lengths), 64)
    for row, (length, its) in enumerate(zip(lengths, expected, strict=True)):
        its_places = slice(row, row + 1), slice(None), slice(length)
        assert same_bits((keys[its_places], values[its_places]), its)
    [alone] = kept[:1]
    keys, values = made[alone].update_and_fetch(*new[0])
    assert same_bits((keys, values), expected[0])


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("lengths", [(5, 5), (9, 2, 5)])
def test_a_mask_shows_each_row_its_own_tokens(
    lengths: tuple[int, ...], count: int, window: int | None
) -> None:
    batch = batch_of([whole(row, 0, length) for row, length in enumerate(lengths)])
    mask = batch.make_mask(count, return_array=True, window_size=window)
    total = max(lengths) + count
    if mask is None:
        assert count == 1 and window is None and len(set(lengths)) == 1
        return
    assert isinstance(mask, mx.array)
    seen = plain(mx.broadcast_to(mask, (len(lengths), 1, count, total)))
    for row, length in enumerate(lengths):
        for query in range(count):
            at = length + query
            first = 0 if window is None else max(0, at - window + 1)
            assert seen[row][0][query] == [first <= key <= at for key in range(total)]


def test_rows_of_one_length_need_no_array_of_a_mask() -> None:
    equal, mixed = batch_of([whole(1, 0, 5)] * 2), batch_of([whole(1, 0, 5), whole(2, 0, 6)])
    assert equal.make_mask(1) is None
    assert equal.make_mask(3) == "causal"
    assert isinstance(mixed.make_mask(1), mx.array)
    assert isinstance(mixed.make_mask(3), mx.array)


def test_rows_of_one_length_are_not_copied() -> None:
    batch = batch_of([whole(row, 0, 250) for row in range(4)])
    keys, values = batch.update_and_fetch(*in_rows(*[tokens(9, 250, 251)] * 4))
    mx.eval(keys, values, batch.state)
    before = mx.get_active_memory()
    keys, values = batch.keys_and_values()
    mx.eval(keys, values)
    assert mx.get_active_memory() == before
