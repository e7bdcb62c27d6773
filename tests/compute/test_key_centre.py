"""The mean that is taken off a layer's keys, and that attention does not miss it."""

import os
import subprocess
import sys
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.rotated import Rotated
from omlx_server.compute.kv.schemes.turboquant import BITS, TurboQuant
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.quantise import use_scheme
from tests.api.harness import REPO
from tests.arrays import plain
from tests.compute.kv.every_scheme import dequantized_keys, dequantized_values
from tests.compute.kv.models import ACCEPTED, quantised, wide
from tests.compute.kv.samples import normal
from tests.sweeps import sweep

FOUR_BITS = TurboQuant.of_bits(4)


def centres(loaded: LoadedModel) -> list[mx.array]:
    held = leaves(cache_ops.new_caches(loaded.model))
    schemes: list[Any] = [leaf.scheme for leaf in held if isinstance(leaf, PackedKVCache)]
    return [scheme.centre for scheme in schemes]


def error(x: mx.array, restored: mx.array) -> float:
    squares: float = plain(((x - restored) ** 2).sum())
    return squares


@pytest.mark.parametrize(
    ("architecture", "scheme"), sweep(ACCEPTED, [FOUR_BITS, Rotated.of(4, 32)])
)
def test_every_quantised_layer_has_one_and_it_is_the_same_each_time(
    architecture: str, scheme: Scheme
) -> None:
    one, again = (centres(quantised(architecture, scheme)) for _ in range(2))
    assert one and all(centre.dtype == mx.float32 and centre.shape[1] == 1 for centre in one)
    assert all(plain(mx.array_equal(a, b)) for a, b in zip(one, again, strict=True))
    assert all(plain(mx.abs(centre).max()) > 0 for centre in one)


def test_a_model_measured_twice_has_the_same() -> None:
    """The second time its own caches are measured, not those of the first."""
    loaded = quantised("llama", FOUR_BITS)
    before = centres(loaded)
    use_scheme(loaded.model, TurboQuant.of_bits(3))
    assert all(plain(mx.array_equal(a, b)) for a, b in zip(before, centres(loaded), strict=True))


_MEASURE = """
from hashlib import sha256
from tests.compute.kv.models import quantised
from tests.compute.test_key_centre import FOUR_BITS, centres
from tests.arrays import plain
print(sha256(str([plain(c) for c in centres(quantised("llama", FOUR_BITS))]).encode()).hexdigest())
"""


def test_another_process_has_the_same() -> None:
    """Blocks that were stored before a restart are read after it."""

    def measured(seed: str) -> str:
        ran = [sys.executable, "-c", _MEASURE]
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPO)}
        return subprocess.run(ran, env=env, capture_output=True, text=True, check=True).stdout

    assert measured("1") == measured("2") != ""


def test_keys_that_share_a_part_lose_it() -> None:
    """A bias in the key projection, where RoPE turns it slowest, is what all keys share."""
    loaded = wide("llama")
    attention: Any = loaded.model.layers[0].self_attn
    bias = np.zeros(attention.k_proj.weight.shape[0], dtype=np.float32)
    bias[15::32] = 7.0  # the slowest pair of each head of 32
    attention.k_proj.bias = mx.array(bias)
    use_scheme(loaded.model, FOUR_BITS)
    shared = centres(loaded)[0][:, 0]
    assert plain(mx.abs(shared[:, 15] - 7).max()) < 1.5
    assert plain(mx.abs(shared[:, 0]).max()) < 0.5


def test_a_model_that_computes_no_numbers_gets_zeros() -> None:
    loaded = wide("llama")
    layer: Any = loaded.model.layers[1]
    expected = centres(quantised("llama", FOUR_BITS))[0]
    layer.self_attn.k_proj.weight = layer.self_attn.k_proj.weight * float("nan")
    with pytest.MonkeyPatch.context() as patch:  # the proof would refuse it: NaN equals nothing
        patch.setattr("omlx_server.compute.quantise._is_close", lambda logits, plain: True)
        use_scheme(loaded.model, FOUR_BITS)
    first, second = centres(loaded)
    assert plain(mx.array_equal(first, expected))
    assert plain(mx.abs(second).max()) == 0


@pytest.mark.parametrize("bits", BITS)
def test_attention_is_that_on_whole_keys(bits: int) -> None:
    """What is nowhere added again is nowhere missed."""
    queries, keys, values = normal(1, 2, 4, 3, 64), normal(2, 2, 2, 40, 64), normal(3, 2, 2, 40, 64)
    centre = 5 * normal(4, 2, 1, 64)
    keys = keys + centre
    scheme = TurboQuant(bits, bits).centred_on(centre)
    stored = scheme.quantize_keys(keys), scheme.quantize_values(values)
    whole = dequantized_keys(scheme, stored[0], 64, mx.float32)
    expected = mx.fast.scaled_dot_product_attention(
        queries,
        whole,
        dequantized_values(scheme, stored[1], 64, mx.float32),
        scale=0.1,
        mask="causal",
    )
    got = scheme.attend(queries, *stored, scale=0.1, mask="causal")
    assert plain(mx.abs(got - expected).max()) < 1e-4
    bare = TurboQuant(bits, bits)
    without = dequantized_keys(bare, bare.quantize_keys(keys), 64, mx.float32)
    assert error(keys, whole) < error(keys, without) / 10


def test_so_it_is_with_rotated_ones() -> None:
    queries, keys, values = normal(1, 2, 4, 3, 64), normal(2, 2, 2, 40, 64), normal(3, 2, 2, 40, 64)
    centre = 5 * normal(4, 2, 1, 64)
    keys = keys + centre
    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.1, mask="causal")
    errors = []
    for scheme in (Rotated.of(6), Rotated.of(6).centred_on(centre)):
        stored = scheme.quantize_keys(keys), scheme.quantize_values(values)
        got = scheme.attend(queries, *stored, scale=0.1, mask="causal")
        errors.append(error(expected, got))
    assert errors[1] < errors[0] / 4


def test_a_key_at_the_centre_is_stored_as_zeros() -> None:
    centre = normal(5, 2, 1, 64)
    scheme = FOUR_BITS.centred_on(centre)
    words, scale = scheme.quantize_keys(mx.broadcast_to(centre[None], (1, 2, 3, 64)))
    assert plain(mx.abs(scale).max()) == 0
    restored = dequantized_keys(scheme, (words, scale), 64, mx.float32)
    assert plain(mx.array_equal(restored, mx.broadcast_to(centre[None], (1, 2, 3, 64))))
