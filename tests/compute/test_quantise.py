"""A model gets quantised caches where its attention can read them, or is refused with words."""

import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.registry import codec_of, leaves
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.dispatch import Dispatch
from omlx_server.compute.kv.latent import WholeKVCache
from omlx_server.compute.kv.rows import RowsKV
from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.rotated import Rotated
from omlx_server.compute.quantise import Quantised, use_rows_of_own_length, use_scheme
from omlx_server.errors import ModelUnavailable
from tests.arrays import plain
from tests.compute.kv.every_scheme import FOUR_BITS, every_kind
from tests.compute.kv.models import ACCEPTED, REFUSED, quantised, wide
from tests.tiny_models import load_tiny

SCHEME = Affine(4, 32)


def formats(model: nn.Module) -> list[str]:
    """Of each cache, in words: those of full attention that are not quantised are "kv"."""
    return [codec_of(leaf).describe(leaf) for leaf in leaves(cache_ops.new_caches(model))]


def caches_of(model: nn.Module) -> list[PackedKVCache]:
    made = leaves(cache_ops.new_caches(model))
    return [leaf for leaf in made if isinstance(leaf, PackedKVCache)]


# -- who gets them -----------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("architecture", ACCEPTED)
def test_full_attention_is_quantised_and_nothing_else(architecture: str, scheme: Scheme) -> None:
    loaded = wide(architecture)
    before = formats(loaded.model)
    done = use_scheme(loaded.model, scheme)
    assert done == Quantised(before.count("kv")) and done.quantised
    named = [leaf.scheme.name for leaf in caches_of(loaded.model)]
    assert len(named) == done.quantised
    assert all(name.startswith(scheme.name) for name in named)
    others = [kind for kind in before if kind != "kv"]
    assert [kind for kind in formats(loaded.model) if kind not in named] == others


@pytest.mark.parametrize("architecture", ACCEPTED)
def test_logits_are_close_to_those_of_plain_caches(architecture: str) -> None:
    """At 8 bits; nothing of mask, scale or position was lost on the way."""
    model, tokens = wide(architecture).model, mx.array([[1, 2, 3, 4, 5, 6, 7]])
    expected = model(tokens, cache=cache_ops.new_caches(model))
    use_scheme(model, Affine(8, 32))
    caches = cache_ops.new_caches(model)
    got = mx.concatenate(
        [model(tokens[:, :4], cache=caches), model(tokens[:, 4:], cache=caches)], 1
    )
    assert plain(mx.abs(got - expected).max() / mx.abs(expected).max()) < 0.05


@pytest.mark.parametrize("use", [partial(use_scheme, scheme=SCHEME), use_rows_of_own_length])
def test_the_hook_is_in_place_afterwards(
    use: Callable[[nn.Module], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wide("llama").model
    current: Any = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", current.original)
    use(model)
    assert isinstance(mx.fast.scaled_dot_product_attention, Dispatch)


def test_each_call_makes_caches_of_its_own() -> None:
    model = quantised("llama", SCHEME).model
    one, other = cache_ops.new_caches(model), cache_ops.new_caches(model)
    model(mx.array([[1, 2, 3]]), cache=one)
    assert all(cache.empty() for cache in (*other, *cache_ops.new_caches(model)))
    assert not any(cache.empty() for cache in one)


def test_a_second_scheme_replaces_the_first() -> None:
    model = quantised("falcon_h1", SCHEME).model
    other = Rotated.of(8, 32)
    assert use_scheme(model, other) == Quantised(2)
    held = leaves(cache_ops.new_caches(model))
    assert [leaf.scheme for leaf in held if isinstance(leaf, PackedKVCache)] == [other] * 2


def test_a_model_with_quantised_caches_goes_when_nobody_holds_it() -> None:
    """At once: the weights of a model are too large to wait for a collector of cycles."""
    loaded: Any = quantised("llama", SCHEME)
    gone = weakref.ref(loaded.model)
    gc.disable()
    try:
        del loaded
        assert gone() is None
    finally:
        gc.enable()


# -- who does not ------------------------------------------------------------------------


def check_untouched(model: nn.Module, before: Sequence[str]) -> None:
    assert formats(model) == list(before)


@pytest.mark.parametrize("scheme", FOUR_BITS)
@pytest.mark.parametrize("architecture", REFUSED)
def test_a_model_that_cannot_have_them_is_refused(architecture: str, scheme: Scheme) -> None:
    model = wide(architecture).model
    before = formats(model)
    with pytest.raises(ModelUnavailable, match=REFUSED[architecture]) as refusal:
        use_scheme(model, scheme)
    assert scheme.name in str(refusal.value) and "kv_cache.scheme" in refusal.value.hint
    check_untouched(model, before)


def test_heads_that_no_group_fits_are_refused() -> None:
    model = load_tiny("qwen3").model  # heads of 16
    with pytest.raises(
        ModelUnavailable, match="group size of 32 does not divide its head dim of 16"
    ):
        use_scheme(model, SCHEME)
    check_untouched(model, ["kv"] * 2)
    with pytest.raises(ModelUnavailable, match="head dim of 32; 32 would"):
        use_scheme(wide("qwen3").model, Affine(4, 64))


def test_layers_that_share_their_keys_are_quantised_together() -> None:
    """gemma4: the last layer of a kind hands its keys to those behind it."""
    model = load_tiny(
        "gemma4_text",
        num_hidden_layers=6,
        layer_types=["sliding_attention", "full_attention"] * 3,
    ).model
    before = formats(model)
    assert use_scheme(model, SCHEME) == Quantised(before.count("kv"))
    assert formats(model).count(SCHEME.name) == before.count("kv")


class Attention(nn.Module):
    """One layer that attends as mlx-lm's do, or has a flaw."""

    layers = (None,)

    def __init__(self, flaw: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flaw = flaw
        self.embed = nn.Embedding(11, 64)

    def __call__(self, inputs: mx.array, cache: Any) -> Any:
        x = self.embed(inputs)
        mask: Any = create_attention_mask(x, cache[0])
        q = k = v = x.reshape(*inputs.shape, 2, 32).swapaxes(1, 2)
        length = cache[0].offset
        keys, values = cache[0].update_and_fetch(k, v)
        if self.flaw == "past":  # whatever it attends to, it is not what the cache gave
            return self.embed.as_linear(x)
        if self.flaw == "newest":
            return self.embed.as_linear(keys[:, :, -1:].swapaxes(1, 2).reshape(len(x), 1, -1) + x)
        quantised = not isinstance(keys, mx.array)
        if self.flaw == "raises" and quantised:
            raise ValueError("planted: no\nmore lines")
        if self.flaw == "late" and quantised and isinstance(length, int) and length:
            return self.embed.as_linear(x)
        scale = 0.2 if self.flaw == "scale" and quantised else 0.1
        if self.flaw == "batch" and isinstance(keys, RowsKV):
            q = mx.roll(q, 1, 0)  # of another row
        a = scaled_dot_product_attention(q, keys, values, cache=cache[0], scale=scale, mask=mask)
        return self.embed.as_linear(a.swapaxes(1, 2).reshape(x.shape))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("phi", mx.bfloat16),
        ("stablelm", mx.bfloat16),
        ("phixtral", mx.float32),  # MLX's CPU backend has no experts in 16 bits
        ("nemotron-nas+linear", mx.float32),
    ],
)
def test_models_that_ask_for_a_type_or_leave_a_cache_unused_pass(
    name: str, dtype: mx.Dtype
) -> None:
    model = load_tiny(name).model
    model.set_dtype(dtype)
    done = use_rows_of_own_length(model)
    assert done.quantised and not done.plain, done


def test_the_proof_accepts_what_is_right() -> None:
    assert use_scheme(Attention(), SCHEME) == Quantised(1)


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("past", "does not go through MLX's own function"),
        ("late", "does not go through MLX's own function"),
        ("scale", "computes something else"),
        ("batch", "computes something else"),
        ("raises", "planted: no"),
    ],
)
def test_the_proof_notices_what_is_wrong(flaw: str, words: str) -> None:
    model = Attention(flaw)
    with pytest.raises(ModelUnavailable, match=words) as refusal:
        use_scheme(model, SCHEME)
    assert "\n" not in str(refusal.value)
    check_untouched(model, ["kv"])
    assert use_rows_of_own_length(model) == Quantised(1)
    assert all(isinstance(cache, WholeKVCache) for cache in caches_of(model))


def test_a_model_that_finds_tokens_by_their_place_in_the_batch_keeps_its_caches() -> None:
    """The newest token of each row is last in mlx-lm's batches only."""
    model = Attention("newest")
    done = use_rows_of_own_length(model)
    assert done.quantised == 0 and "reads keys and values by itself" in done.reason
    assert not caches_of(model)
