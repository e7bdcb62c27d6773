"""Filters against the plainest form of each rule: a sort of the whole vocabulary, row by row."""

import math
import random
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from omlx_server.compute.sampler import sample
from omlx_server.compute.sampling.logits import filtered
from omlx_server.core.request import SamplingParams
from tests.arrays import plain
from tests.compute.sampling.live import row

NEAR = 1e-4
"""What sums of float32 may be off by."""


def by_a_sort(logits: npt.NDArray[np.float32], params: SamplingParams, top_p: float) -> set[int]:
    """The tokens that all filters keep, of logits that are divided by the temperature already."""
    values = logits.astype(np.float64)
    if params.min_p > 0:
        values[values < values.max() + math.log(params.min_p)] = -np.inf
    order = np.argsort(-values, kind="stable")
    best = order[: params.top_k or None]
    weights = np.exp(values[best] - values.max())
    before = (np.cumsum(weights) - weights) / weights.sum()
    last = best[np.flatnonzero(before < top_p)[-1]] if top_p < 1 else best[-1]
    return set(np.flatnonzero(values >= values[last]).tolist()) - set(
        np.flatnonzero(values == -np.inf).tolist()
    )


def some_params(rng: random.Random, vocab: int) -> dict[str, Any]:
    return {
        "temperature": rng.choice((0.6, 1.0, 1.7)),
        "top_k": rng.choice((0, 1, 5, 40, vocab // 2, vocab, vocab + 5)),
        "top_p": rng.choice((1.0, 0.01, 0.3, 0.8, 0.95, 0.999)),
        "min_p": rng.choice((0.0, 0.0, 0.02, 1.0)),
        "seed": rng.randrange(1 << 30),
    }


def some_logits(rng: random.Random, rows: int, vocab: int) -> mx.array:
    """Peaked or flat, with equal ones as those of a model in bfloat16 are, some of them -inf."""
    noise = mx.random.normal((rows, vocab), key=mx.random.key(rng.randrange(1 << 30)))
    logits = (noise * rng.choice((0.0, 0.1, 2.0, 6.0))).astype(mx.bfloat16).astype(mx.float32)
    dropped = mx.random.uniform(shape=(rows, vocab), key=mx.random.key(rng.randrange(1 << 30)))
    masked = mx.where(dropped < rng.choice((0.0, 0.3, 0.99)), -math.inf, logits)
    masked[:, rng.randrange(vocab)] = 0.5
    return masked


@pytest.mark.parametrize("vocab", [40, 1000, 20_011])
@pytest.mark.parametrize("seed", range(12))
def test_the_seeded_token_is_the_likeliest_of_those_that_a_sort_keeps(
    seed: int, vocab: int
) -> None:
    rng = random.Random(seed * 7 + vocab)
    rows = [row(f"{n}", vocab, **some_params(rng, vocab)) for n in range(9)]
    logits, keys = some_logits(rng, len(rows), vocab), [own.noise_key() for own in rows]
    tokens = plain(sample(logits, rows).tokens)
    for own, key, token, raw in zip(rows, keys, tokens, logits, strict=True):
        scaled = raw / own.sampling.temperature
        noise = np.array(mx.random.gumbel((vocab,), key=mx.array(key, dtype=mx.uint32)))
        values, top_p = np.array(scaled), own.sampling.top_p
        [kept] = np.array(filtered(scaled[None], [own.sampling]))
        found = set(np.flatnonzero(kept > -np.inf).tolist())
        assert found >= by_a_sort(values, own.sampling, top_p - NEAR if top_p < 1 else 1.0)
        assert found <= by_a_sort(values, own.sampling, top_p + NEAR if top_p < 1 else 1.0)
        assert token == max(sorted(found), key=lambda at: values[at] + noise[at])


@pytest.mark.parametrize("seed", range(12))
def test_a_row_keeps_the_same_tokens_alone_and_in_any_company(seed: int) -> None:
    """Others with a larger top_k make more candidates, of which nothing may depend."""
    rng, vocab = random.Random(seed), 20_011
    params = [some_params(rng, vocab) for _ in range(9)]
    rows = [SamplingParams(max_tokens=5, **own) for own in params]
    logits = some_logits(rng, len(rows), vocab)
    together = filtered(logits, rows)
    for at, own in enumerate(rows):
        assert mx.array_equal(filtered(logits[at : at + 1], [own])[0], together[at])


def test_top_k_alone_drops_none_of_its_tokens_however_unlikely() -> None:
    logits = mx.array([[0.0, -30.0, -60.0, -90.0]])
    kept = filtered(logits, [SamplingParams(max_tokens=5, top_k=3)])
    assert plain(kept) == [[0.0, -30.0, -60.0, -math.inf]]


def test_a_few_largest_are_found_without_a_copy_of_the_vocabulary() -> None:
    """A sort of it would be one."""
    vocab = 128_000
    logits = mx.random.normal((4, vocab))
    mx.eval(logits)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    kept = filtered(logits, [SamplingParams(max_tokens=5, top_k=20, top_p=0.9)] * 4)
    mx.eval(kept)
    assert mx.get_peak_memory() - before < 1.6 * kept.nbytes
