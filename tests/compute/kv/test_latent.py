"""Latent attention of rows that differ in length and refer to spans, as mlx-lm's models ask for
it."""

import random
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.latent import LatentKVCache, RotatedKeys
from omlx_server.compute.kv.schemes.plain import Latent
from omlx_server.compute.kv.spans import Runs, Span
from tests.arrays import plain
from tests.compute.kv.sequences import Tokens, behind, fed, in_rows, segment

LATENT, ROTATED, HEADS, SCALE = 32, 16, 3, 0.2


def tokens(seed: int, start: int, stop: int, dtype: mx.Dtype = mx.float32) -> Tokens:
    """Latents and rotated keys of tokens [start, stop) of a sequence."""
    both = mx.random.normal((1, 1, 512, LATENT + ROTATED), key=mx.random.key(seed)).astype(dtype)
    return both[..., start:stop, :LATENT], both[..., start:stop, LATENT:]


def latent(new: Tokens, *spans: Span) -> LatentKVCache:
    """A cache of these tokens, behind spans."""
    cache = LatentKVCache(Latent())
    cache.put((), (), 0, spans)
    fed(cache, new)
    return cache


def decoded(cache: Any, queries: Tokens, new: Tokens) -> mx.array:
    """A decode as in deepseek_v3."""
    mask = cache.make_mask(1, return_array=True)
    assert mask is None
    latents, rotated = cache.update_and_fetch(*new)
    added = (queries[1] * SCALE) @ rotated.swapaxes(-1, -2)
    answer: mx.array = mx.fast.scaled_dot_product_attention(
        queries[0], latents, latents, scale=SCALE, mask=added
    )
    mx.eval(answer)
    return answer


def expected(queries: Tokens, seen: Tokens) -> mx.array:
    latents, rotated = (array.astype(mx.float32) for array in seen)
    both = mx.concatenate([latents, rotated], axis=-1).swapaxes(-1, -2)
    scores = (mx.concatenate(list(queries), axis=-1) @ both) * SCALE
    return mx.softmax(scores, axis=-1) @ latents


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("seed", range(12))
def test_each_row_sees_all_of_its_tokens_and_no_others(seed: int, dtype: mx.Dtype) -> None:
    dispatch.install()
    rng, runs = random.Random(seed), Runs()
    first = tokens(0, 0, 40, dtype)
    [span] = segment(runs, base := latent(first), 0, 32).spans()
    rows, seen, new = list[LatentKVCache](), list[Tokens](), list[Tokens]()
    for number in range(1, 1 + rng.choice([1, 2, 6])):
        count, refers = rng.choice([1, 7, 8, 300]), rng.choice([True, False])
        own = tokens(number, 0, count + 1, dtype)
        begun = (own[0][:, :, :count], own[1][:, :, :count])
        rows.append(latent(begun, *([span] if refers else [])))
        seen.append(behind(tokens(0, 0, 32, dtype), own) if refers else own)
        new.append((own[0][:, :, count:], own[1][:, :, count:]))
    both = mx.random.normal((len(rows), HEADS, 1, LATENT + ROTATED), key=mx.random.key(seed))
    both = both.astype(dtype)
    queries = both[..., :LATENT], both[..., LATENT:]
    batch = rows[0].merge(rows)
    got = decoded(batch, queries, in_rows(*new))
    tolerance = 1e-5 if dtype == mx.float32 else 0.05
    for row, its in enumerate(seen):
        own_queries = queries[0][row : row + 1], queries[1][row : row + 1]
        wanted = expected(own_queries, its)
        assert plain(mx.abs(got[row] - wanted[0]).max()) < tolerance
        alone = decoded(rows[row], own_queries, new[row])
        assert plain(mx.abs(alone - wanted).max()) < tolerance
    assert base.offset == 40


def test_equal_rows_get_arrays_as_ever() -> None:
    """So they run the kernels that mlx-lm's caches run."""
    batch = LatentKVCache.merge([latent(tokens(n, 0, 9)) for n in range(3)])
    latents, rotated = batch.update_and_fetch(*in_rows(*[tokens(9, 9, 10)] * 3))
    assert type(latents) is type(rotated) is mx.array
    mixed = LatentKVCache.merge([latent(tokens(n, 0, 9 + n)) for n in range(3)])
    _, rotated = mixed.update_and_fetch(*in_rows(*[tokens(9, 9, 10)] * 3))
    assert type(rotated) is RotatedKeys
    several, _ = mixed.update_and_fetch(*in_rows(*[tokens(9, 9, 11)] * 3))
    assert type(several) is mx.array and several.shape == (3, 1, 14, LATENT)
