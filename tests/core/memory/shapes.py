"""Models and steps for property tests."""

from dataclasses import replace

from hypothesis import strategies as st

from omlx_server.core.memory.kv import Decode, Keeps, LayerKv, ModelShape, PrefillShape, TileSizes

LAYERS = (
    LayerKv(Keeps.GROWING, 4096, 3),
    LayerKv(Keeps.RING, 4096, 5, window=512),
    LayerKv(Keeps.CONSTANT, 70_000, 2),
)
MODEL = ModelShape(
    hidden=256,
    intermediate=700,
    heads=8,
    kv_heads=4,
    head_dim=64,
    vocab=8192,
    width=4,
    layers=LAYERS,
)
TILES = TileSizes(64, 0, 1 << 20, 512)

models = st.builds(
    lambda hidden, heads, vocab, width, tiles: replace(
        MODEL, hidden=hidden, heads=4 * heads, vocab=vocab, width=width, tiles=tiles
    ),
    st.integers(1, 4096),
    st.integers(1, 8),
    st.integers(1, 1 << 17),
    st.sampled_from([2, 4]),
    st.sampled_from([None, TILES]),
)
prefills = st.builds(PrefillShape, st.integers(1, 8), st.integers(1, 1024), st.integers(0, 8192))
decodes = st.builds(
    Decode,
    st.integers(1, 16),
    st.integers(1, 8192),
    st.booleans(),
)
