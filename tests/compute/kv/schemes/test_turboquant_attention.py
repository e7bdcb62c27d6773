"""Attention on what TurboQuant stores, against plain attention on the same numbers in full."""

from typing import NamedTuple

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes import packing, turboquant_tiles
from omlx_server.compute.kv.schemes.base import Arrays
from omlx_server.compute.kv.schemes.rotation import SEED, VectorRotation
from omlx_server.compute.kv.schemes.turboquant import BITS, CHOICES, TurboQuant
from tests.arrays import plain
from tests.compute.kv.coded import coded_levels
from tests.compute.kv.every_scheme import dequantized_keys, dequantized_values

every_width = pytest.mark.parametrize("bits", BITS)


def normal(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


class Case(NamedTuple):
    batch: int
    query_heads: int
    heads: int
    length: int
    total: int
    dim: int


CASES = (
    Case(1, 4, 4, 1, 1, 64),
    Case(2, 6, 2, 1, 300, 64),
    Case(3, 6, 3, 7, 150, 64),
    Case(1, 8, 1, 40, 300, 32),
    Case(2, 4, 2, 5, 33, 80),
    Case(1, 2, 2, 3, 20, 72),
    Case(1, 3, 1, 2, 140, 96),
)
MASKS = (
    *("none", "causal", "2d", "rows", "heads", "columns", "hidden"),
    *("added", "added inf", "added padding"),
)


def mask_of(kind: str, case: Case) -> mx.array | str | None:
    length, total = case.length, case.total
    seen = mx.arange(total - length, total)[:, None] >= mx.arange(total)
    # Padding that hides whole tiles, but no row's own token.
    start = mx.minimum(130 * mx.arange(case.batch), total - length)
    padded = mx.arange(total) >= start[:, None, None, None]
    shape = (case.batch, case.query_heads, length, total)
    each_head = mx.random.uniform(shape=shape) < 0.5
    return {
        "none": None,
        "causal": "causal",
        "2d": seen,
        "rows": padded & seen,
        "heads": each_head | (mx.arange(total) == 0),
        "columns": padded,
        "hidden": padded & seen & (mx.arange(length) > 0)[:, None],
        "added": mx.where(seen, 2 * mx.random.normal(shape), -1e9),
        "added padding": mx.where(padded & seen, 0.0, -mx.inf),
        "added inf": mx.where(seen, mx.random.normal((length, total)), -mx.inf),
    }[kind]


def plain_attention(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | str | None
) -> np.ndarray:
    """In float64, with no tiles."""
    length, total, repeats = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    keys, values = (np.repeat(np.array(x, dtype=np.float64), repeats, axis=1) for x in (k, v))
    scores = np.array(q, dtype=np.float64) @ keys.swapaxes(-1, -2) * scale
    if isinstance(mask, str):
        mask = mx.arange(total - length, total)[:, None] >= mx.arange(total)
    if mask is not None and mask.dtype == mx.bool_:
        scores = np.where(np.array(mask), scores, -np.inf)
    elif mask is not None:
        scores = scores + np.array(mask)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        answer: np.ndarray = weights / weights.sum(axis=-1, keepdims=True) @ values
    return answer


def drawn(case: Case, scheme: TurboQuant) -> tuple[mx.array, Arrays, Arrays]:
    mx.random.seed(11)
    k = 2 * mx.random.normal((case.batch, case.heads, case.total, case.dim)) + 0.5
    v = mx.random.normal(k.shape)
    q = 2 * mx.random.normal((case.batch, case.query_heads, case.length, case.dim))
    return q, scheme.quantize_keys(k), scheme.quantize_values(v)


def by_codes(arrays: Arrays, bits: int, dim: int) -> mx.array:
    """The vectors [B, H, T, dim] whose levels are those that the codes of a GPU stand for."""
    levels = mx.array(coded_levels(bits).astype(np.float32))
    index = packing.unpack(arrays[0], bits)[..., :dim]
    scaled = levels[index] * arrays[1].astype(mx.float32)
    return VectorRotation.of(dim, SEED, 3).inverse(scaled)


def check_against_plain(scheme: TurboQuant, case: Case, kind: str) -> None:
    q, keys, values = drawn(case, scheme)
    mask = mask_of(kind, case)
    ours = scheme.attend(q, keys, values, scale=0.2, mask=mask)
    assert ours.shape == q.shape and ours.dtype == q.dtype
    if device.is_cpu():
        k = dequantized_keys(scheme, keys, case.dim, mx.float32)
        v = dequantized_values(scheme, values, case.dim, mx.float32)
    else:
        k = by_codes(keys, scheme.key_bits, case.dim)
        v = by_codes(values, scheme.value_bits, case.dim)
    theirs = plain_attention(q, k, v, 0.2, mask)
    sees_something = ~np.isnan(theirs).any(axis=-1)
    assert kind == "hidden" or sees_something.all()
    assert np.isfinite(np.array(ours)).all()
    assert (np.abs(np.array(ours) - theirs)[sees_something] < 1e-4).all()


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turboquant_tiles, "_NUMBERS_ON_CPU", 1)


@pytest.fixture(params=["CPU", "GPU"])
def either_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen on a GPU is computed on the CPU backend."""
    monkeypatch.setattr(device, "is_cpu", lambda: request.param == "CPU")


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("small_tiles", "either_device")
def test_it_is_softmax_attention_on_what_is_stored(case: Case, kind: str) -> None:
    check_against_plain(TurboQuant(3, 4), case, kind)


@pytest.mark.parametrize("bits", CHOICES)
@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[5]], ids=str)
@pytest.mark.usefixtures("either_device")
def test_it_is_so_for_all_bits(case: Case, bits: float) -> None:
    check_against_plain(TurboQuant.of_bits(bits), case, "rows")


@pytest.mark.parametrize("bits", BITS)
def test_a_gpu_reads_nearly_the_same_numbers(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = TurboQuant(bits, bits)
    q, keys, values = drawn(Case(2, 6, 3, 2, 300, 64), scheme)
    exact = scheme.attend(q, keys, values, scale=0.2, mask="causal")
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    coded = scheme.attend(q, keys, values, scale=0.2, mask="causal")
    assert plain(mx.sqrt(((exact - coded) ** 2).mean())) < 0.01


@pytest.mark.parametrize("length", [63, 64])
def test_many_rows_read_tiles_of_the_same_numbers(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 rows a head, of which 126 are read at once, are the border on a GPU."""
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    check_against_plain(TurboQuant(4, 4), Case(1, 4, 2, length, 1300, 64), "causal")


@every_width
@pytest.mark.parametrize("length", [1, 40])
def test_tiles_change_no_more_than_rounding(
    bits: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme = TurboQuant(bits, bits)
    q, keys, values = drawn(Case(2, 6, 3, length, 700, 64), scheme)
    answers = []
    for fewest, numbers in ((128, 1), (333, 1), (128, 1 << 30)):
        monkeypatch.setattr(turboquant_tiles, "_FEWEST_TOKENS_ON_CPU", fewest)
        monkeypatch.setattr(turboquant_tiles, "_NUMBERS_ON_CPU", numbers)
        answers.append(scheme.attend(q, keys, values, scale=0.2, mask="causal"))
    for other in answers[1:]:
        assert plain(mx.abs(answers[0] - other).max()) < 2e-5


@pytest.mark.usefixtures("small_tiles")
def test_it_is_the_same_every_time() -> None:
    scheme = TurboQuant(3, 4)
    q, keys, values = drawn(Case(2, 6, 3, 9, 400, 64), scheme)
    first, *more = [scheme.attend(q, keys, values, scale=0.2, mask="causal") for _ in range(4)]
    assert all(plain(mx.array_equal(first, other)) for other in more)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_half_precision_queries_are_computed_in_float32(dtype: mx.Dtype) -> None:
    scheme = TurboQuant(4, 4)
    q, keys, values = drawn(Case(1, 4, 2, 3, 50, 64), scheme)
    half = scheme.attend(q.astype(dtype), keys, values, scale=0.2, mask="causal")
    full = scheme.attend(q.astype(dtype).astype(mx.float32), keys, values, scale=0.2, mask="causal")
    assert half.dtype == dtype and plain(mx.array_equal(half, full.astype(dtype)))


def padded_together(rows: list[Arrays]) -> Arrays:
    """Stored rows as a batch, with zero bytes on the left."""
    longest = max(row[0].shape[2] for row in rows)
    return tuple(
        mx.concatenate(
            [mx.pad(x, [(0, 0), (0, 0), (longest - x.shape[2], 0), (0, 0)]) for x in parts]
        )
        for parts in zip(*rows, strict=True)
    )


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.usefixtures("small_tiles")
def test_padded_rows_of_a_batch_answer_as_alone(length: int) -> None:
    scheme = TurboQuant(3, 4)
    totals = (150, 290, 20)
    longest = max(totals)
    rows = []
    for seed, total in enumerate(totals):
        q, k, v = (normal(10 * seed + i, 1, 2, n, 64) for i, n in enumerate((length, total, total)))
        rows.append((q, scheme.quantize_keys(k), scheme.quantize_values(v)))
    alone = [scheme.attend(q, k, v, scale=0.3, mask="causal") for q, k, v in rows]
    start = mx.array([longest - total for total in totals])[:, None, None, None]
    position = mx.arange(longest)
    mask = (position >= start) & (position <= mx.arange(longest - length, longest)[:, None])
    queries = mx.concatenate([q for q, _, _ in rows])
    keys = padded_together([k for _, k, _ in rows])
    values = padded_together([v for _, _, v in rows])
    together = scheme.attend(queries, keys, values, scale=0.3, mask=mask)
    assert mx.allclose(together, mx.concatenate(alone), rtol=0, atol=3e-6)


def test_values_may_have_another_dim_that_fills_its_words() -> None:
    scheme = TurboQuant(3, 4)
    k, v, q = normal(0, 1, 2, 30, 96), normal(1, 1, 2, 30, 64), normal(2, 1, 4, 3, 96)
    keys, values = scheme.quantize_keys(k), scheme.quantize_values(v)
    ours = scheme.attend(q, keys, values, scale=0.1, mask=None)
    restored = dequantized_values(scheme, values, 64, mx.float32)
    theirs = plain_attention(q, dequantized_keys(scheme, keys, 96, mx.float32), restored, 0.1, None)
    assert ours.shape == (1, 4, 3, 64) and np.abs(np.array(ours) - theirs).max() < 1e-4


@every_width
def test_keys_are_never_all_there_in_full(bits: int) -> None:
    """What is held beyond the arguments is some tiles, however long the sequence."""
    scheme = TurboQuant(bits, bits)
    heads, dim, total = 8, 128, 16384
    packed = mx.zeros((1, heads, total, packing.words(dim, bits)), dtype=mx.uint32)
    stored = (packed, mx.ones((1, heads, total, 1), dtype=mx.float16))
    q = normal(1, 1, heads, 1, dim)
    mx.eval(q, stored, scheme.attend(q, stored, stored, scale=0.1, mask=None))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(scheme.attend(q, stored, stored, scale=0.1, mask="causal"))
    peak = mx.get_peak_memory() - before
    assert peak < 0.4 * total * heads * dim * 4
