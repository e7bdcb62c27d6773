"""What passes of encoders take, by numbers."""

from dataclasses import replace

import pytest

from omlx_server.compute.planning.encoder_fit import fit_encoder_plan
from omlx_server.core.memory.encoder import (
    EncoderPlan,
    EncoderShape,
    Pass,
    chunk_leftover_bytes,
    terms,
)

SHAPE = EncoderShape(
    layers=3, hidden=10, intermediate=40, heads=2, kv_heads=1, head_dim=5, width=4, causal=False
)
CAUSAL = replace(SHAPE, causal=True)


def test_an_encoder_sees_all_of_a_text_in_each_layer() -> None:
    """Slices are of layers, so they change nothing."""
    for slice_tokens in (1, 10, 1000):
        assert terms(SHAPE, Pass(2, 30, slice_tokens)) == (60 * 70 * 4, 60 * 2 * 30 * 4)
        assert chunk_leftover_bytes(SHAPE, Pass(2, 30, slice_tokens)) == 0


def test_a_causal_model_reads_in_chunks_and_keeps_what_it_read() -> None:
    assert terms(CAUSAL, Pass(2, 30, 20)) == (20 * 70 * 4, 20 * 2 * 30 * 4)
    kept = 2 * 256 * 2 * 5 * 4 * 3  # the first buffers have room for all
    assert chunk_leftover_bytes(CAUSAL, Pass(2, 30, 20)) == kept + 2 * 30 * 10 * 4
    grown = 2 * (250 + 256) * 2 * 5 * 4 * (3 + 1)
    assert chunk_leftover_bytes(CAUSAL, Pass(2, 300, 20)) == grown + 2 * 300 * 10 * 4
    assert chunk_leftover_bytes(CAUSAL, Pass(2, 30, 60)) == 0


def test_scores_are_made_so_many_at_a_time() -> None:
    pieces = replace(SHAPE, most_scores=600)
    assert terms(pieces, Pass(2, 30, 1))[1] == 600 * 4
    assert terms(pieces, Pass(1, 10, 1))[1] == 10 * 2 * 10 * 4
    one_row = 2 * 1 * 400
    assert terms(pieces, Pass(1, 400, 1))[1] == one_row * 4


def test_a_plan_is_never_below_its_probes() -> None:
    probes = [(Pass(1, 200, 200), 900_000), (Pass(10, 20, 200), 400_000), (Pass(2, 100, 200), 1)]
    plan = fit_encoder_plan(SHAPE, probes)
    assert all(plan.needs(one) >= took for one, took in probes)
    alike = EncoderPlan(SHAPE, (3.0, 2.0))
    exact = [(one, int(3 * terms(SHAPE, one)[0] + 2 * terms(SHAPE, one)[1])) for one, _ in probes]
    assert fit_encoder_plan(SHAPE, exact).factors == pytest.approx(alike.factors, rel=0.01)


def test_where_nothing_was_taken_nothing_is_fitted() -> None:
    with pytest.raises(ValueError, match="measurements"):
        fit_encoder_plan(SHAPE, [(Pass(1, 10, 10), 0)])
