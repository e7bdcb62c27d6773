"""Images beside what else our caches can do: few bits, and tokens that other caches hold."""

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.compute.kv.spans import Runs
from omlx_server.compute.quantise import use_scheme
from tests.compute.kv.every_scheme import every_kind
from tests.compute.vision.recorded import CLOSE, apart, arrays
from tests.compute.vision.seeing import MODELS, Loaded, fresh, in_chunks, loaded


@every_kind
def test_an_image_is_held_in_few_bits(scheme: Scheme) -> None:
    check_borders(fresh("qwen3_5"), scheme)


def test_an_image_of_gemma_is_held_in_few_bits() -> None:
    check_borders(fresh("gemma3"), TurboQuant.of_bits(4))


def check_borders(model: Loaded, scheme: Scheme) -> None:
    """A prompt gives the same whole and in chunks that end before and behind its images, nearly
    what it gives without a scheme."""
    exact = in_chunks(model, model.prompt(1), ())[0]
    use_scheme(model.model, scheme)
    prompt = model.prompt(1)
    whole, caches = in_chunks(model, prompt, ())
    assert any(isinstance(c, PackedKVCache) and c.scheme == scheme for c in caches)
    borders = sorted(
        border
        for start, features in zip(prompt.starts, prompt.features, strict=True)
        for border in (start, start + features.tokens)
    )
    parts, _ = in_chunks(model, prompt, borders)
    assert apart(parts, np.array(whole)) < CLOSE
    assert CLOSE < apart(whole, np.array(exact)) < 0.5 * mx.abs(exact).max().item()  # type: ignore[operator]


@pytest.mark.parametrize("name", MODELS)
def test_an_image_stands_behind_tokens_that_another_cache_holds(name: str) -> None:
    model = loaded(name)
    prompt, caches = model.prompt(1), model.caches()
    start = prompt.starts[0]
    model.feed(prompt, 0, start, caches)
    behind, _ = cache_ops.fork(caches, 2, start, Runs(least=0))
    assert any(isinstance(cache, PackedKVCache) and cache.spans for cache in behind)
    logits = model.feed(prompt, start, len(prompt.ids), behind)
    assert apart(logits, arrays(name)["logits_1"][start:]) < CLOSE
