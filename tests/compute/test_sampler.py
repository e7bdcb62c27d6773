"""The sampler against the plainest form of each rule, one row at a time in Python."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.sampler import Sampled, SamplingRow, sample
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Join, SequenceId
from tests.arrays import plain

VOCAB = 40
GENERATOR: Any = mx.random.state


def row(
    name: str = "r", context: Sequence[int] = (1, 2, 3), prompt: int = 3, **params: Any
) -> SamplingRow:
    base = SamplingParams(max_tokens=50, **params)
    return SamplingRow.of(Join(SequenceId(RequestId(name), 0), tuple(context), prompt, base), VOCAB)


def random_logits(seed: int, rows: int = 1) -> mx.array:
    return mx.random.normal((rows, VOCAB), key=mx.random.key(seed)) * 3


def tokens_of(sampled: Sampled) -> list[int]:
    return [r.tokens[0].id for r in sampled.to_host()]


def draw_many(logits: list[float], count: int, **params: Any) -> Counter[int]:
    """Frequencies of `count` rows with different seeds over the same logits."""
    rows = [row(f"r{i}", seed=i, **params) for i in range(count)]
    return Counter(tokens_of(sample(mx.broadcast_to(mx.array(logits), (count, VOCAB)), rows)))


def kept_by_rule(
    logits: Sequence[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """The distribution after all filters, by sorting a Python list."""
    top = max(logits)
    weights = {i: math.exp((x - top) / temperature) for i, x in enumerate(logits)}
    weights = {i: w for i, w in weights.items() if w >= min_p}
    ordered = sorted(weights, key=lambda i: -weights[i])[: top_k or None]
    total, mass = sum(weights[i] for i in ordered), 0.0
    kept: list[int] = []
    for i in ordered:
        if kept and mass >= top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    norm = sum(weights[i] for i in kept)
    return {i: weights[i] / norm for i in kept}


def test_greedy_takes_the_likeliest_of_each_row() -> None:
    logits = random_logits(0, 5)
    expected = plain(mx.argmax(logits, axis=-1))
    assert tokens_of(sample(logits, [row(temperature=0.0) for _ in range(5)])) == expected


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (2.0, 0, 1.0, 0.0),
        (1.0, 3, 1.0, 0.0),
        (1.0, 0, 0.6, 0.0),
        (1.0, 0, 0.0, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.4, 7, 0.8, 0.05),
    ],
)
def test_samples_follow_the_filtered_softmax(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = plain(random_logits(3)[0])
    expected = kept_by_rule(logits, temperature, top_k, top_p, min_p)
    count = 4000
    drawn = draw_many(logits, count, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert set(drawn) <= set(expected), "a token outside the filter was drawn"
    for token, probability in expected.items():
        error = 5 * math.sqrt(probability * (1 - probability) / count) + 1e-9
        assert abs(drawn[token] / count - probability) <= error


def test_a_row_draws_the_same_alone_and_in_any_company() -> None:
    logits = random_logits(5, 6)
    special: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 9, "presence_penalty": 0.5}
    alone = tokens_of(sample(logits[2:3], [row(**special)]))
    company = [
        row("a", temperature=0.0),
        row("b", seed=1, min_p=0.1),
        row(**special),
        row("c", seed=2, top_k=3, logit_bias=((4, 3.0),)),
        row("d", temperature=0.0, top_logprobs=3),
        row("e", seed=5, repetition_penalty=1.3),
    ]
    assert tokens_of(sample(logits, company))[2] == alone[0]


def test_the_global_generator_is_left_alone() -> None:
    mx.random.seed(1)
    before = plain(GENERATOR[0])
    tokens_of(sample(random_logits(1), [row(seed=3)]))
    assert plain(GENERATOR[0]) == before


def test_each_position_draws_anew_and_the_same_position_the_same() -> None:
    logits = mx.zeros((1, VOCAB))
    one = row(seed=4)
    first = [tokens_of(sample(logits, [one]))[0] for _ in range(20)]
    again = row(seed=4)
    assert [tokens_of(sample(logits, [again]))[0] for _ in range(20)] == first
    assert len(set(first)) > 8
    resumed = row(seed=4, context=(1, 2, 3, *first[:10]))
    assert [tokens_of(sample(logits, [resumed]))[0] for _ in range(10)] == first[10:]


def test_penalties_are_those_of_the_formulas() -> None:
    prompt, output = (1, 2, 2), (5, 5, 6)
    logits = random_logits(8)
    expected = plain(logits[0])
    for token in {*prompt, *output}:
        expected[token] = expected[token] / 1.7 if expected[token] > 0 else expected[token] * 1.7
    for token, count in Counter(output).items():
        expected[token] -= 0.3 * count + 0.4
    probe = row(
        context=(*prompt, *output),
        prompt=3,
        temperature=0.0,
        repetition_penalty=1.7,
        frequency_penalty=0.3,
        presence_penalty=0.4,
    )
    # A bias that lifts one pair of tokens after the other above the rest compares them by rank.
    for token in range(VOCAB):
        biased = mx.array([x if i in (token, 5) else -1e9 for i, x in enumerate(expected)])
        raw = mx.array([plain(logits[0, i]) if i in (token, 5) else -1e9 for i in range(VOCAB)])
        fresh = SamplingRow.of(Join(probe.id, (*prompt, *output), 3, probe.sampling), VOCAB)
        assert tokens_of(sample(raw[None], [fresh]))[0] == plain(mx.argmax(biased))


def test_counts_grow_with_what_was_sampled() -> None:
    logits = mx.array([[float(i == 7) * 2 + float(i == 8) * 1.5 for i in range(VOCAB)]])
    penalised = row(temperature=0.0, frequency_penalty=0.4)
    drawn = [tokens_of(sample(logits, [penalised]))[0] for _ in range(6)]
    assert drawn == [7, 7, 8, 7, 8, 7]


def test_logit_bias_forces_and_bans() -> None:
    logits = random_logits(2)
    likeliest = plain(mx.argmax(logits[0]))
    assert tokens_of(sample(logits, [row(logit_bias=((11, 100.0),))])) == [11]
    banned = row(temperature=0.0, logit_bias=((likeliest, -100.0),))
    assert tokens_of(sample(logits, [banned])) != [likeliest]


def test_penalties_are_of_biased_logits() -> None:
    """As in vLLM and mlx-lm: (2 + 3) / 2 is less than 3, where 2 / 2 + 3 is more."""
    logits = mx.array([[2.0 if i == 1 else 3.0 if i == 7 else -9.0 for i in range(VOCAB)]])
    both = row(temperature=0.0, repetition_penalty=2.0, logit_bias=((1, 3.0),))
    assert tokens_of(sample(logits, [both])) == [7]


def test_stop_tokens_are_banned_until_min_tokens() -> None:
    logits = mx.array([[10.0 if i == 3 else float(i == 4) for i in range(VOCAB)]])
    eager = row(temperature=0.0, min_tokens=2, stop_ids=frozenset({3}))
    assert [tokens_of(sample(logits, [eager]))[0] for _ in range(4)] == [4, 4, 3, 3]


def test_ids_beyond_the_vocabulary_touch_nothing() -> None:
    """MLX checks no bounds: such an id would be written to somebody else's memory."""
    odd = row(logit_bias=((VOCAB + 1, 9.0), (2, 1.0)), stop_ids=frozenset({VOCAB}), min_tokens=3)
    assert odd.bias is not None and odd.bias.ids.tolist() == [2]
    assert odd.banned is None
    with_penalty = row(context=(1, VOCAB, 3), prompt=2, repetition_penalty=2.0)
    assert with_penalty.history is not None
    [entries] = plain(with_penalty.history.table.entries)
    assert entries == [{1: 0.5, 3: 1.0}.get(i, 0.0) for i in range(VOCAB)]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits(6, 3)
    rows = [
        row("a", temperature=0.0, top_logprobs=0),
        row("b", temperature=0.7, seed=3, top_logprobs=5, logit_bias=((2, 50.0),)),
        row("c", temperature=0.0),
    ]
    result = sample(logits, rows).to_host()
    log_softmax = plain(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    assert result[2].tokens[0].logprobs is None
    for index, width in ((0, 0), (1, 5)):
        [sampled], values = result[index].tokens, log_softmax[index]
        logprobs = sampled.logprobs
        assert logprobs is not None
        assert logprobs.chosen == pytest.approx(values[sampled.id], abs=1e-5)
        best = sorted(range(VOCAB), key=lambda i: -values[i])[:width]
        assert [id for id, _ in logprobs.top] == best
        assert [v for _, v in logprobs.top] == pytest.approx([values[i] for i in best], abs=1e-5)


def test_a_kept_result_pins_no_row_of_logits() -> None:
    """One row of a [B, V] buffer would keep the whole buffer alive."""
    vocab = 200_000
    params = SamplingParams(max_tokens=5, temperature=0, top_logprobs=20)
    wide = [
        SamplingRow.of(Join(SequenceId(RequestId(f"{i}"), 0), (1, 2), 2, params), vocab)
        for i in range(8)
    ]
    kept = []
    before = mx.get_active_memory()
    for seed in range(8):
        sampled = sample(mx.random.normal((8, vocab), key=mx.random.key(seed)), wide)
        mx.eval(sampled.arrays())
        kept.append(sampled)
    mx.clear_cache()
    assert mx.get_active_memory() - before < 8 * 8 * 20_000


def test_top_p_keeps_what_a_list_would_keep_whatever_the_shape() -> None:
    rng = random.Random(0)
    for _ in range(30):
        logits = [rng.choice([0.0, rng.uniform(-8, 8)]) for _ in range(VOCAB)]
        top_p, top_k = rng.choice([0.1, 0.5, 0.9, 0.999]), rng.choice([0, 1, 5])
        # Ties at the border are all kept, so equal logits are made different first.
        logits = [x + i * 1e-3 for i, x in enumerate(logits)]
        expected = kept_by_rule(logits, 1.0, top_k, top_p, 0.0)
        drawn = draw_many(logits, 300, top_p=top_p, top_k=top_k)
        assert set(drawn) <= set(expected)


@pytest.mark.parametrize("seed", range(60))
def test_a_draft_is_sampled_behind_as_rows_that_came_there_by_themselves(seed: int) -> None:
    """With the noise, the penalties, the bans and the mask of each position."""
    rng = random.Random(seed)
    params: dict[str, Any] = {
        "seed": seed,
        "temperature": rng.choice((0.0, 1.0)),
        "repetition_penalty": rng.choice((1.0, 1.5)),
        "frequency_penalty": rng.choice((0.0, 1.0)),
        "presence_penalty": rng.choice((0.0, -2.0)),
        "min_tokens": rng.choice((0, 5)),
        "stop_ids": frozenset(range(0, VOCAB, 3)),
        "logit_bias": ((4, 2.0),) if rng.random() < 0.5 else (),
    }
    context = [rng.randrange(VOCAB) for _ in range(6)]
    draft = [rng.randrange(VOCAB) for _ in range(5)]
    logits = random_logits(seed, len(draft) + 1)
    states = row(context=context, **params).states_along(draft)
    assert len(states) == len(draft) + 1
    there = [row(context=[*context, *draft[:at]], **params) for at in range(len(draft) + 1)]
    assert tokens_of(sample(logits, states)) == tokens_of(sample(logits, there))
    again = random_logits(seed + 1000, len(states))  # and so does the token after it
    assert tokens_of(sample(again, states)) == tokens_of(sample(again, there))
