"""The contract with mlx-lm's attention: what the hook stands on, and that nobody else notices."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import base
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.affine import Affine
from omlx_server.compute.kv.base import Arrays, Mask
from omlx_server.compute.kv.classes import new_cache
from omlx_server.compute.kv.dispatch import Dispatch
from tests.arrays import plain


def noise(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def fed(cache: Any, count: int = 40) -> tuple[Any, Any]:
    keys, values = cache.update_and_fetch(noise(2, 1, 2, count, 64), noise(3, 1, 2, count, 64))
    return keys, values


def attended(cache: Any, keys: Any, values: Any, mask: Any, **options: Any) -> mx.array:
    queries = noise(1, 1, 4, 3, 64)
    answer: mx.array = base.scaled_dot_product_attention(
        queries, keys, values, cache=cache, scale=0.2, mask=mask, **options
    )
    mx.eval(answer)
    return answer


@pytest.fixture(autouse=True)
def installed() -> None:
    dispatch.install()


def test_installing_it_again_changes_nothing() -> None:
    before: Any = base.quantized_scaled_dot_product_attention
    dispatch.install()
    assert base.quantized_scaled_dot_product_attention is before
    assert isinstance(before, Dispatch) and not isinstance(before.original, Dispatch)
    assert before.original.__module__ == base.__name__


def test_what_our_caches_gave_is_attended_by_its_scheme() -> None:
    """Breaks when an upgrade of mlx-lm moves what we hook into."""
    asked = []

    class Asked(Affine):
        __slots__ = ()

        def attend(
            self, queries: mx.array, keys: Arrays, values: Arrays, *, scale: float, mask: Mask
        ) -> mx.array:
            asked.append((scale, mask, [a.shape for a in (*keys, *values)]))
            return queries + 1

    cache = new_cache(Affine(4, 32))
    cache.scheme = Asked(4, 32)
    answer = attended(cache, *fed(cache), "causal")
    assert plain(mx.array_equal(answer, noise(1, 1, 4, 3, 64) + 1))
    shapes = [(1, 2, 40, 8), (1, 2, 40, 2), (1, 2, 40, 2)] * 2
    assert asked == [(0.2, "causal", shapes)]


@pytest.mark.parametrize("mask", ["causal", None, "array"])
def test_mlx_lms_own_quantized_cache_is_attended_as_before(mask: str | None) -> None:
    given = mx.ones((3, 40), dtype=mx.bool_) if mask == "array" else mask
    cache = QuantizedKVCache(group_size=32, bits=4)
    keys, values = fed(cache)
    hook: Any = base.quantized_scaled_dot_product_attention
    wanted = hook.original(
        noise(1, 1, 4, 3, 64), keys, values, scale=0.2, mask=given, group_size=32, bits=4
    )
    assert plain(mx.array_equal(attended(cache, keys, values, given), wanted))


def test_a_plain_cache_is_attended_as_before() -> None:
    cache = KVCache()
    keys, values = fed(cache)
    wanted = mx.fast.scaled_dot_product_attention(
        noise(1, 1, 4, 3, 64), keys, values, scale=0.2, mask="causal"
    )
    assert plain(mx.array_equal(attended(cache, keys, values, "causal"), wanted))


def test_sinks_are_refused_with_our_caches_as_with_mlx_lms() -> None:
    for cache in (new_cache(Affine(4, 32)), QuantizedKVCache(group_size=32, bits=4)):
        with pytest.raises(ValueError, match="sinks"):
            attended(cache, *fed(cache), None, sinks=mx.zeros(4))


def test_whoever_takes_our_keys_for_an_array_fails() -> None:
    keys, values = fed(new_cache(Affine(4, 32)))
    queries = noise(1, 1, 4, 3, 64)
    # MLX's own function, or ours if it was installed before.
    with pytest.raises((AttributeError, TypeError)):
        mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.2)
    with pytest.raises(TypeError):
        queries @ keys
    with pytest.raises(AttributeError):
        keys.swapaxes(-1, -2)
