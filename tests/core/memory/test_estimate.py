"""The planner's arithmetic: what it grows with, what corrects it, that corrections pass."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.memory.bound import STRUCTURAL
from omlx_server.core.memory.correction import HALF_LIFE_SECONDS, HIGHEST, Correction
from omlx_server.core.memory.estimate import Coefficients, Planner, Prefills
from omlx_server.core.memory.kv import cache_bytes, places
from omlx_server.core.memory.shape import Decode, ModelShape, Prefill, StepShape
from tests.core.memory.shapes import LAYERS, MODEL, decodes, models, prefills

FITTED = Coefficients(
    alone=Prefills((2.5, 2.4), (2.5, 2.2, 2.0, 1.0, 0.0)),
    together=Prefills((2.5, 2.4), (2.5, 2.2, 2.0, 1.0, 1.0)),
    layers=(3.0, 2.0, 2.0),
    head=(1.0, 1.0, 0.5, 0.5),
    copies=(1.2, 0.3, 0.9, 0.5),
)
EVERY = settings(derandomize=True, max_examples=150, deadline=None)


def planner(model: ModelShape = MODEL) -> Planner:
    return Planner(model, FITTED)


@EVERY
@given(model=models, prefill=prefills, more=st.integers(1, 600))
def test_a_larger_prefill_never_takes_less(model: ModelShape, prefill: Prefill, more: int) -> None:
    plan = planner(replace(model, tiles=None))
    base = plan.prefill(prefill)
    assert base > 0
    # A chunk that makes buffers grow costs a copy that a longer one behind it may not.
    apart = replace(prefill, context=places(prefill.context))
    base = plan.prefill(apart)
    assert plan.prefill(replace(apart, tokens=apart.tokens + more)) >= base
    assert plan.prefill(replace(apart, context=apart.context + 256 * more)) >= base
    if prefill.rows > 1:
        assert plan.prefill(replace(apart, rows=apart.rows + 1)) >= base


@EVERY
@given(model=models, decode=decodes, more=st.integers(1, 4000))
def test_a_larger_decode_never_takes_less(model: ModelShape, decode: Decode, more: int) -> None:
    plan = planner(replace(model, tiles=None))
    base = plan.decode(decode)
    assert base > 0
    assert plan.decode(replace(decode, context=decode.context + more)) >= base
    assert plan.decode(replace(decode, rows=decode.rows + 1)) >= base
    assert plan.decode(replace(decode, joined=decode.joined + 1)) >= base
    assert plan.decode(replace(decode, left=True)) >= base
    assert plan.decode(replace(decode, grows=True)) >= base


@EVERY
@given(model=models, prefill=prefills, decode=decodes)
def test_a_larger_model_never_takes_less(
    model: ModelShape, prefill: Prefill, decode: Decode
) -> None:
    step = StepShape(decode, (prefill,))
    base = planner(model).transient(step)
    for larger in (
        replace(model, hidden=model.hidden + 1),
        replace(model, intermediate=model.intermediate + 1),
        replace(model, vocab=model.vocab + 1),
        replace(model, width=2 * model.width),
    ):
        assert planner(larger).transient(step) >= base


@EVERY
@given(model=models, prefill=prefills)
def test_quantised_keys_are_scored_tile_by_tile(model: ModelShape, prefill: Prefill) -> None:
    """So behind a long context nothing grows but buffers, and what is copied for a batch."""
    if model.tiles is None:
        return
    deep = replace(prefill, rows=1, context=places(max(prefill.context, 8192)))
    deeper = replace(deep, context=deep.context + 4096)
    uncopied = replace(FITTED.alone, deep=(*FITTED.alone.deep[:3], 0.0, 0.0))
    plan = Planner(model, replace(FITTED, alone=uncopied))
    assert plan.prefill(deep) == plan.prefill(deeper)


def test_a_step_takes_what_its_worst_forward_takes() -> None:
    small, large, decode = Prefill(1, 16, 0), Prefill(1, 512, 2048), Decode(16, 8000, joined=4)
    plan = planner()
    step = StepShape(decode, (small, large))
    assert plan.transient(step) == max(plan.prefill(large), plan.decode(decode))
    assert plan.transient(StepShape(Decode(1, 9), (small, large))) == plan.prefill(large)
    assert plan.transient(StepShape(decode, (small,))) == plan.decode(decode)
    assert plan.transient(StepShape()) == 0


def test_a_large_vocabulary_shows_in_decodes_alone() -> None:
    wide = replace(MODEL, vocab=1 << 18)
    decode, prefill = Decode(4, 9), Prefill(1, 64, 0)
    assert planner(wide).decode(decode) > 4 * (1 << 18) * 4
    assert planner(wide).prefill(prefill) == planner().prefill(prefill)


def test_each_row_that_comes_into_a_batch_is_copied() -> None:
    plan = planner()
    taken = [plan.decode(Decode(8, 4096, joined=n)) for n in range(9)]
    row = 3 * 4096 * 4096
    assert taken[1] - taken[0] > row
    assert taken[8] == taken[7]  # the first row of a batch that was empty
    assert taken[7] - taken[1] > 6 * 0.9 * row


def test_growth_is_that_of_the_caches() -> None:
    plan = planner()
    chunk = StepShape(prefills=(Prefill(1, 256, 0),))
    assert plan.growth(chunk) == cache_bytes(LAYERS, 1, 256, 256)
    assert plan.growth(StepShape(Decode(2, 300))) == 0
    assert plan.growth(StepShape(Decode(2, 1024))) == 2 * 3 * 256 * 4096
    assert plan.estimate(chunk, 0.0) == plan.growth(chunk) + plan.transient(chunk)


def test_the_bound_is_above_a_fit() -> None:
    for step in (StepShape(prefills=(Prefill(4, 128, 900),)), StepShape(Decode(8, 4000, joined=2))):
        assert Planner(MODEL, STRUCTURAL).transient(step) > 2 * planner().transient(step)
    assert not STRUCTURAL.calibrated


def test_a_step_that_took_more_raises_the_next_estimates_of_its_kind() -> None:
    plan = planner()
    step = StepShape(prefills=(Prefill(1, 256, 1024),))
    decode = StepShape(Decode(4, 900))
    before = plan.estimate(step, 0.0), plan.estimate(decode, 0.0)
    plan.observe(step, 2 * plan.transient(step), 0.0)
    raised = plan.growth(step) + 2 * plan.transient(step)
    assert abs(plan.estimate(step, 0.0) - raised) <= 1
    assert plan.estimate(decode, 0.0) == before[1]
    assert plan.estimate(step, 60 * HALF_LIFE_SECONDS) == before[0]
    plan.observe(decode, 3 * plan.transient(decode), 0.0)
    assert plan.estimate(decode, 0.0) > 2.9 * plan.transient(decode)


# -- the correction ------------------------------------------------------------------------------

observations = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**12), st.floats(0, 600)), max_size=20
)


@EVERY
@given(observations=observations)
def test_a_correction_is_bounded_and_passes_by_itself(
    observations: list[tuple[int, int, float]],
) -> None:
    correction, now = Correction(), 0.0
    for estimated, measured, passed in observations:
        now += passed
        correction.observe(estimated, measured, now)
        assert 1.0 <= correction.ratio(now) <= HIGHEST
    later = [correction.ratio(now + n * HALF_LIFE_SECONDS) for n in range(30)]
    assert later == sorted(later, reverse=True)
    assert later[-1] < 1.0 + 1e-6


def test_a_correction_halves_in_its_half_life() -> None:
    correction = Correction()
    correction.observe(100, 300, 5.0)
    assert correction.ratio(5.0) == 3.0
    assert correction.ratio(5.0 + HALF_LIFE_SECONDS) == 2.0


def test_good_steps_do_not_hold_a_correction_up() -> None:
    correction = Correction()
    correction.observe(100, 300, 0.0)
    for second in range(600):
        correction.observe(100, 90, float(second))
    assert correction.ratio(600.0) < 1.01
