"""Quantised caches stay quantised when they are rebuilt from blocks: no copy in full precision."""

import mlx.core as mx
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.payload import BlockCodec
from omlx_server.compute.quantise import use_scheme
from tests.compute.held import active
from tests.compute.kv.every_scheme import every_kind
from tests.tiny_models import load_tiny

TOKENS, BLOCK, LAYERS, HEADS, DIM = 1024, 64, 6, 8, 128
PLAIN = 2 * LAYERS * HEADS * DIM * 4 * TOKENS


@every_kind
@pytest.mark.parametrize("what", ["prefill", "rebuild"])
def test_no_copy_in_full_precision_is_ever_made(scheme: Scheme, what: str) -> None:
    loaded = load_tiny(
        "llama",
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=DIM,
    )
    use_scheme(loaded.model, scheme)
    codec = BlockCodec.of(loaded.model, BLOCK)
    assert codec is not None
    before = _reset()
    caches = cache_ops.new_caches(loaded.model)
    for _ in range(0, TOKENS, BLOCK):
        loaded.model(mx.zeros((1, BLOCK), mx.int32), cache=caches)
        cache_ops.evaluate(caches, wait=True)
    if what == "rebuild":
        row = CacheRow(0, TOKENS)
        blocks = [
            codec.cut_block(caches, row, start, start + BLOCK) for start in range(0, TOKENS, BLOCK)
        ]
        mx.eval(*(buffer for block in blocks for buffer in block.buffers))
        del caches
        before = _reset()
        cache_ops.evaluate(codec.join(blocks, None, TOKENS), wait=True)
    assert mx.get_peak_memory() - before < PLAIN / 2


def _reset() -> int:
    held = active()
    mx.reset_peak_memory()
    return held
