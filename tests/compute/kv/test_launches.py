"""What a decode launches, counted in the graph that MLX has of it: no more for equal rows than with
mlx-lm's caches, and for others by the number of groups and spans, not of rows."""

import mlx.core as mx
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.turboquant import CHOICES, TurboQuant
from omlx_server.compute.kv.spans import Runs
from omlx_server.compute.planning.probe import filled_caches, one_token_caches
from omlx_server.compute.quantise import use_scheme
from tests.compute.kv.launches import launches, launches_on_gpu, merged, read
from tests.compute.warm_runs import tiny
from tests.sweeps import sweep
from tests.tiny_models import load_tiny


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "deepseek_v3"])
@pytest.mark.parametrize("rows", [2, 8])
def test_equal_rows_take_no_more_than_with_mlx_lms_caches(architecture: str, rows: int) -> None:
    loaded = tiny(architecture)
    counts = [
        launches(loaded, merged(read(loaded, [60] * rows, ours=ours)), rows)
        for ours in (True, False)
    ]
    assert counts[0] <= counts[1]


@pytest.mark.parametrize("architecture", ["llama", "deepseek_v3"])
def test_more_rows_of_the_same_lengths_take_no_more(architecture: str) -> None:
    loaded = tiny(architecture)
    few = launches(loaded, merged(read(loaded, [60, 61, 700, 701])), 4)
    many = launches(loaded, merged(read(loaded, [60, 61, 700, 62, 63, 64, 710, 720])), 8)
    assert many == few


@pytest.mark.parametrize("architecture", ["llama", "deepseek_v3"])
def test_more_rows_on_one_span_take_no_more(architecture: str) -> None:
    loaded, runs = tiny(architecture), Runs(least=0)
    counts = []
    for rows in (2, 8):
        [one] = read(loaded, [300])
        forked = cache_ops.fork(one, rows, 256, runs)
        counts.append(launches(loaded, merged(forked), rows))
    assert counts[0] == counts[1]
    alone = launches(loaded, merged(read(loaded, [300, 300])), 2)
    assert counts[0] <= 3 * alone


@pytest.mark.parametrize("scheme", [None, Affine(4, 32), TurboQuant.of_bits(4)])
def test_rows_of_different_lengths_take_few_more(
    scheme: Scheme | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel a layer to mask what a row does not have, and some to make the mask."""
    loaded = load_tiny("llama", head_dim=64, num_hidden_layers=8)
    if scheme:
        use_scheme(loaded.model, scheme)
    short = one_token_caches(loaded.model)
    equal, different = (
        merged([filled_caches(loaded.model, tokens, 256, short) for tokens in lengths])
        for lengths in ([100] * 4, [100, 101, 102, 103])
    )
    most = launches_on_gpu(loaded, equal, 4, monkeypatch) + 8 + 6
    assert launches_on_gpu(loaded, different, 4, monkeypatch) <= most


# As on a GPU: a whole decode of 30 layers takes less than 1,500.
LAYERS, MOST = 6, 300


@pytest.mark.parametrize(("bits", "dtype"), sweep(CHOICES, [mx.float32, mx.bfloat16]))
def test_turboquant_takes_few_kernels_at_any_length_and_for_any_rows(
    bits: float, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_tiny("llama", head_dim=64, num_hidden_layers=LAYERS)
    loaded.model.set_dtype(dtype)
    use_scheme(loaded.model, TurboQuant.of_bits(bits))
    short = one_token_caches(loaded.model)
    counts = set[int]()
    for rows, tokens in ((1, 100), (1, 2_000), (1, 20_000), (8, 100), (8, 2_000)):
        caches = [filled_caches(loaded.model, tokens, 256, short) for _ in range(rows)]
        batch = merged(caches) if rows > 1 else caches[0]
        counts.add(launches_on_gpu(loaded, batch, rows, monkeypatch))
    [count] = counts
    assert count < MOST


@pytest.mark.parametrize(("bits", "head_dim"), sweep(CHOICES, [96, 128]))
def test_turboquant_takes_few_kernels_for_heads_of_other_sizes(
    bits: float, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_tiny("llama", head_dim=head_dim, num_hidden_layers=LAYERS)
    loaded.model.set_dtype(mx.bfloat16)
    use_scheme(loaded.model, TurboQuant.of_bits(bits))
    caches = filled_caches(loaded.model, 100, 256, one_token_caches(loaded.model))
    assert launches_on_gpu(loaded, caches, 1, monkeypatch) < MOST
