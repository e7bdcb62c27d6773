"""Penalties, logit_bias and bans of whole batches, whose rows come, go and verify drafts, against a
loop over each row's own tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from omlx_server.compute import sampler
from omlx_server.compute.sampler import SamplingRow, sample
from omlx_server.core.request import SamplingParams
from tests.arrays import plain
from tests.compute.sampling.live import row

VOCAB = 24


@dataclass
class Live:
    """A row with the tokens that it has."""

    row: SamplingRow
    prompt: list[int]
    answer: list[int] = field(default_factory=list)

    @property
    def sampling(self) -> SamplingParams:
        return self.row.sampling


def newcomer(rng: random.Random, number: int) -> Live:
    """A row with some of all that shapes logits, and perhaps the beginning of an answer."""
    params: dict[str, Any] = {
        "temperature": 0.0,
        "repetition_penalty": rng.choice((1.0, 1.0, 1.3, 0.8)),
        "frequency_penalty": rng.choice((0.0, 0.0, 0.6, -0.1)),
        "presence_penalty": rng.choice((0.0, 0.0, 0.7, -0.3)),
        "logit_bias": rng.choice(((), ((2, 3.0), (5, -100.0), (VOCAB + 3, 50.0)))),
        "min_tokens": rng.choice((0, 6)),
        "stop_ids": frozenset(rng.sample(range(VOCAB), 3)),
    }
    context = [rng.randrange(VOCAB) for _ in range(rng.randrange(2, 9))]
    prompt = rng.randrange(1, len(context) + 1)
    own = row(f"{number}", VOCAB, context, prompt, **params)
    return Live(own, context[:prompt], context[prompt:])


def by_a_loop(
    logits: npt.NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    answer: list[int],
) -> int:
    """The token that a greedy row samples behind its answer, in float32."""
    scores, number = logits.copy(), np.float32
    for token, bias in params.logit_bias:
        if token < VOCAB:
            scores[token] += number(bias)
    for token in {*prompt, *answer}:
        penalty = number(params.repetition_penalty)
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(answer):
        scores[token] -= number(params.frequency_penalty) * number(answer.count(token))
        scores[token] -= number(params.presence_penalty)
    for token in params.stop_ids if len(answer) < params.min_tokens else ():
        scores[token] = -np.inf
    return int(scores.argmax())


def step(rng: random.Random, live: list[Live], *, drafting: bool) -> None:
    """Sample for all rows, some of which verify a draft, and go on behind the last drafted token:
    as if all were right."""
    drafts = [[rng.randrange(VOCAB) for _ in range(rng.randrange(4) * drafting)] for _ in live]
    states = [own.row.states_along(draft) for own, draft in zip(live, drafts, strict=True)]
    flat = [state for own in states for state in own]
    logits = mx.random.normal((len(flat), VOCAB), key=mx.random.key(rng.randrange(1 << 30)))
    tokens = plain(sample(logits, flat).tokens)
    raw, at = np.array(logits), 0
    for own, draft, ahead in zip(live, drafts, states, strict=True):
        for length in range(len(ahead)):
            answer = own.answer + draft[:length]
            assert tokens[at] == by_a_loop(raw[at], own.sampling, own.prompt, answer)
            at += 1
        own.answer += [*draft, tokens[at - 1]]
        own.row = ahead[-1]


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_come_and_go_and_draft_are_shaped_as_by_a_loop(seed: int) -> None:
    rng, live = random.Random(seed), list[Live]()
    for number in range(30):
        live = [own for own in live if rng.random() > 0.1]
        live += [newcomer(rng, number * 10 + at) for at in range(rng.choice((0, 1, 3)))]
        if live:
            step(rng, live, drafting=rng.random() < 0.3)


def test_a_state_behind_a_draft_has_its_tokens_also_without_the_states_before_it() -> None:
    own = row("r", VOCAB, temperature=0.0, presence_penalty=2.0)
    logits = mx.array([[float(token == 7) for token in range(VOCAB)]])
    assert plain(sample(logits, own.states_along([7])[1:]).tokens) != [7]


def test_what_a_drafter_tries_is_no_part_of_the_answer() -> None:
    """A drafter samples with copies of the rows, which go on without them."""
    rng = random.Random(3)
    live = [newcomer(rng, number) for number in range(6)]
    for _ in range(5):
        copies = [replace(own.row) for own in live]
        for _ in range(3):
            sample(mx.random.normal((len(live), VOCAB)), copies)
        step(rng, live, drafting=False)


def penalised(count: int, vocab: int) -> list[SamplingRow]:
    return [
        row(f"{number}", vocab, temperature=0.0, repetition_penalty=1.1) for number in range(count)
    ]


def test_the_bytes_of_rows_are_counted_once_and_left_by_those_that_leave() -> None:
    vocab = 100_000
    rows = penalised(8, vocab)
    assert sampler.nbytes(rows) == 8 * vocab * 4
    sample(mx.zeros((8, vocab)), rows)
    assert sampler.nbytes(rows) == 8 * vocab * 4
    rows = rows[:2]
    assert sampler.nbytes(rows) == 8 * vocab * 4, "the others' are there until the next step"
    sample(mx.zeros((2, vocab)), rows)
    assert sampler.nbytes(rows) == 2 * vocab * 4
    assert sampler.nbytes([row("free", vocab)]) == 0


def test_steps_write_to_the_memory_of_the_last_one() -> None:
    """The histories are there once, not twice."""
    vocab, count = 100_000, 8
    rows, logits = penalised(count, vocab), mx.zeros((count, vocab))
    for _ in range(3):
        mx.eval(sample(logits, rows).tokens)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(sample(logits, rows).tokens)
    assert mx.get_peak_memory() - before < 1.5 * logits.nbytes, "the scores alone are new"
    assert mx.get_active_memory() <= before + 1000
