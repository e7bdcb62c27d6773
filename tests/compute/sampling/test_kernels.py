"""How many kernels sampling adds to a step, counted in MLX's graph: the same number for any number
of rows."""

from collections import Counter
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.sampler import SamplingRow, sample
from tests.compute.kernels import kernels
from tests.compute.sampling.live import row

VOCAB = 1000
PLAIN: dict[str, Any] = {"temperature": 0.0}
PENALISED: dict[str, Any] = {
    **PLAIN,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.3,
}
SHAPED: dict[str, Any] = {
    **PENALISED,
    "logit_bias": ((3, 1.0), (9, -2.0)),
    "min_tokens": 100,
    "stop_ids": frozenset({1, 2}),
}


def rows_of(count: int, **params: Any) -> list[SamplingRow]:
    return [row(f"{number}", VOCAB, **params) for number in range(count)]


def tables_of(rows: list[SamplingRow]) -> list[mx.array]:
    """The histories of rows, which the next step computes."""
    return [*{own.history.table.entries for own in rows if own.history is not None}]


def a_step(rows: list[SamplingRow]) -> list[str]:
    """The kernels of a step of these rows, with what it leaves to the next one."""
    logits = mx.random.normal((len(rows), VOCAB)).astype(mx.bfloat16)
    mx.eval(logits, *tables_of(rows))
    sampled = sample(logits, rows)
    names = kernels(*sampled.arrays(), *tables_of(rows))
    mx.eval(sampled.arrays())
    return names


def a_later_step(rows: list[SamplingRow]) -> list[str]:
    """The kernels of a step of rows that were sampled together before."""
    a_step(rows)
    return a_step(rows)


@pytest.mark.parametrize("count", [1, 8, 32])
def test_plain_rows_take_a_cast_an_argmax_a_sum_and_one_kernel_for_both(count: int) -> None:
    names = Counter(name.split("Broadcast")[0] for name in a_step(rows_of(count, **PLAIN)))
    assert names == {"AsType": 1, "ArgReduce": 1, "Sum": 1, "Compiled": 1}


@pytest.mark.parametrize("params", [PENALISED, SHAPED], ids=["penalties", "penalties and bias"])
@pytest.mark.parametrize("count", [2, 8, 32])
def test_penalties_bias_and_bans_take_five_kernels_more_however_many_rows(
    count: int, params: dict[str, Any]
) -> None:
    plain = len(a_step(rows_of(count, **PLAIN)))
    assert len(a_later_step(rows_of(count, **params))) <= plain + 5


@pytest.mark.parametrize("count", [8, 32])
def test_some_penalised_rows_among_others_take_no_more_for_more_rows(count: int) -> None:
    half = count // 2
    mixed = rows_of(half, **PLAIN) + rows_of(half, **SHAPED)
    assert len(a_later_step(mixed)) <= 16


@pytest.mark.parametrize("count", [8, 32])
def test_the_step_after_a_row_came_or_went_takes_a_few_kernels_more(count: int) -> None:
    rows = rows_of(count, **PENALISED)
    usual = len(a_later_step(rows))
    assert len(a_step(rows[: count // 2])) <= usual + 1
    rows = rows_of(count, **PENALISED)
    a_step(rows)
    assert len(a_step([*rows, row("late", VOCAB, **PENALISED)])) <= usual + 1


@pytest.mark.parametrize("count", [8, 32])
def test_a_verified_draft_takes_a_few_kernels_more_however_long(count: int) -> None:
    rows = rows_of(count, **PENALISED)
    usual = len(a_later_step(rows))
    for length in (1, 5):
        states = [state for own in rows for state in own.states_along(range(length))]
        assert len(a_step(states)) <= usual + 2


@pytest.mark.parametrize(
    "params",
    [{}, {"top_k": 5}, {"top_p": 0.9}, {"top_k": 5, "top_p": 0.9, "min_p": 0.1}],
    ids=["drawn", "top_k", "top_p", "all"],
)
def test_drawn_rows_take_no_more_for_more_rows(params: dict[str, Any]) -> None:
    assert len(a_step(rows_of(32, **params))) == len(a_step(rows_of(2, **params)))
