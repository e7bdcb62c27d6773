"""The contract with mlx-lm's attention: what the hook stands on, and that nobody else notices."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import base
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from omlx_server.compute.attention.by_powers import _mlx_attention, attention
from omlx_server.compute.hardware import device
from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.dispatch import Dispatch
from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Arrays, Mask, Scheme
from omlx_server.compute.kv.schemes.plain import Plain
from tests.arrays import plain
from tests.compute.kv.every_scheme import every_scheme


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
    before: Any = mx.fast.scaled_dot_product_attention
    dispatch.install()
    assert mx.fast.scaled_dot_product_attention is before
    assert isinstance(before, Dispatch) and not isinstance(before.original, Dispatch)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_attention_of_our_own_is_used_on_the_cpu_backend_only(
    on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", _mlx_attention)
    monkeypatch.setattr(device, "is_cpu", lambda: on_cpu)
    dispatch.install()
    installed: Any = mx.fast.scaled_dot_product_attention
    assert installed.original is (attention if on_cpu else _mlx_attention)


def test_what_our_caches_gave_is_attended_by_its_scheme() -> None:
    """Breaks when an upgrade of mlx-lm moves what we hook into."""
    asked = []

    class Asked(Affine):
        __slots__ = ()

        def attend(
            self,
            queries: mx.array,
            keys: Arrays,
            values: Arrays,
            *,
            scale: float,
            mask: Mask,
            sinks: mx.array | None = None,
        ) -> mx.array:
            asked.append((scale, mask, [a.shape for a in (*keys, *values)]))
            return queries + 1

    cache = PackedKVCache(Affine(4, 32))
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
    wanted = base.quantized_scaled_dot_product_attention(
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


@every_scheme
def test_sinks_are_one_more_token_without_a_value(scheme: Scheme) -> None:
    """As with MLX's own function on what the scheme has stored."""
    cache, sinks = PackedKVCache(scheme), mx.array([0.3, -2.0, 4.0, 60.0])
    keys, values = fed(cache)
    got = attended(cache, keys, values, "causal", sinks=sinks)
    without = attended(cache, keys, values, "causal")
    weights = mx.linalg.norm(got, axis=-1) / mx.linalg.norm(without, axis=-1)
    assert plain(weights.max()) < 1.0 and plain(weights[0, 3].max()) < 1e-6
    assert plain(mx.abs(got / weights[..., None] - without)[0, :3].max()) < 1e-3


def test_sinks_with_plain_caches_are_as_with_mlx_lms() -> None:
    sinks = mx.array([0.3, -2.0, 4.0, 60.0])
    ours, theirs = PackedKVCache(Plain()), KVCache()
    got = attended(ours, *fed(ours), "causal", sinks=sinks)
    wanted = attended(theirs, *fed(theirs), "causal", sinks=sinks)
    assert plain(mx.array_equal(got, wanted))


def test_whoever_takes_our_keys_for_an_array_fails() -> None:
    keys, values = fed(PackedKVCache(Affine(4, 32)))
    queries = noise(1, 1, 4, 3, 64)
    with pytest.raises(TypeError):
        _mlx_attention(queries, keys, values, scale=0.2)
    with pytest.raises(TypeError):
        queries @ keys
    with pytest.raises(AttributeError):
        keys.swapaxes(-1, -2)
