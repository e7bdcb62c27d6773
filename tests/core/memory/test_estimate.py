"""The planner's arithmetic: what it grows with, what corrects it, that corrections pass."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.memory.estimate import (
    HALF_LIFE_SECONDS,
    HIGHEST_RATIO,
    STRUCTURAL,
    Coefficients,
    Correction,
    Planner,
    PrefillFactors,
    weighted_sum,
)
from omlx_server.core.memory.features import (
    copied_ring_bytes,
    decode_terms,
    gathered_bytes,
    prefill_terms,
)
from omlx_server.core.memory.kv import (
    FEW_QUERIES,
    MOST_BEHIND,
    Decode,
    Keeps,
    ModelShape,
    PrefillShape,
    StepShape,
    bytes_behind_rings,
    cache_bytes,
    held_bytes,
    places,
)
from tests.core.memory.shapes import LAYERS, MODEL, TILES, decodes, models, prefills

FITTED = Coefficients(
    alone=PrefillFactors((2.5, 2.4), (2.5, 2.2, 2.0, 1.0, 0.0)),
    together=PrefillFactors((2.5, 2.4), (2.5, 2.2, 2.0, 1.0, 1.0)),
    layers=(3.0, 2.0, 2.0),
    head=(1.0, 1.0, 0.5, 0.5),
    copies=(1.2, 0.8),
)
factors = st.tuples(st.floats(1.0, 3.0), st.floats(0.0, 1.0))
EVERY = settings(derandomize=True, max_examples=150, deadline=None)


def planner(model: ModelShape = MODEL) -> Planner:
    return Planner(model, FITTED)


@EVERY
@given(model=models, prefill=prefills, more=st.integers(1, 600))
def test_a_larger_prefill_never_takes_less(
    model: ModelShape, prefill: PrefillShape, more: int
) -> None:
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
    assert plan.decode(replace(decode, grows=True)) >= base


@EVERY
@given(model=models, prefill=prefills, decode=decodes)
def test_a_larger_model_never_takes_less(
    model: ModelShape, prefill: PrefillShape, decode: Decode
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
def test_quantised_keys_are_scored_tile_by_tile(model: ModelShape, prefill: PrefillShape) -> None:
    """So behind a long context nothing grows but buffers, and what is copied for a batch."""
    if model.tiles is None:
        return
    deep = replace(prefill, rows=1, context=places(max(prefill.context, 8192)))
    deeper = replace(deep, context=deep.context + 4096)
    uncopied = replace(FITTED.alone, deep=(*FITTED.alone.deep[:3], 0.0, 0.0))
    plan = Planner(model, replace(FITTED, alone=uncopied))
    assert plan.prefill(deep) == plan.prefill(deeper)


def test_a_tile_is_unpacked_for_many_queries_and_stays_longer_for_few() -> None:
    tiled = replace(MODEL, tiles=TILES)
    few, many = (prefill_terms(tiled, PrefillShape(1, n, 65536)) for n in (31, 32))
    numbers = 4 * int((1 << 20) // (4 * 64) * 1.6) * 4 * 64
    assert few.unpacked == numbers
    assert many.unpacked == int(0.6 * 4 * int(512 * 1.6) * 4 * 64)
    assert prefill_terms(MODEL, PrefillShape(1, 32, 65536)).unpacked == 0


def test_a_step_takes_what_its_worst_forward_takes() -> None:
    small, large, decode = (
        PrefillShape(1, 16, 0),
        PrefillShape(1, 512, 2048),
        Decode(16, 8000, grows=True),
    )
    plan = planner(replace(MODEL, layers=LAYERS[:1]))
    step = StepShape(decode, (small, large))
    assert plan.transient(step) == max(plan.prefill(large), plan.decode(decode))
    assert plan.transient(StepShape(Decode(1, 9), (small, large))) == plan.prefill(large)
    assert plan.transient(StepShape(decode, (small,))) == plan.decode(decode)
    assert plan.transient(StepShape()) == 0
    beside = planner(replace(MODEL, layers=LAYERS[:1], beside_host=True))
    together = 2 * plan.prefill(large) + plan.decode(decode)
    assert beside.transient(step) == together == beside.corrected(step, 0.0)


def test_a_large_vocabulary_shows_in_decodes_alone() -> None:
    wide = replace(MODEL, vocab=1 << 18)
    decode, prefill = Decode(4, 9), PrefillShape(1, 64, 0)
    assert planner(wide).decode(decode) > 4 * (1 << 18) * 4
    assert planner(wide).prefill(prefill) == planner().prefill(prefill)


@EVERY
@given(model=models, rows=st.integers(1, 16), longest=st.integers(1, 9000), copies=factors)
def test_there_is_room_for_one_layer_twice(
    model: ModelShape, rows: int, longest: int, copies: tuple[float, float]
) -> None:
    """Whatever probes made of it: rows that come or go are copied one layer after the other, or
    small ones some at once; those of mlx-lm are padded first, and then one batch."""
    plan = Planner(model, replace(FITTED, copies=copies))
    layer = max(held_bytes([one], [longest] * rows) // one.count for one in model.layers)
    padded = [one for one in model.layers if one.keeps in (Keeps.PADDED, Keeps.RING)]
    copies_of = (held_bytes(layers, [longest] * rows) for layers in (model.layers, padded))
    some = sum(min(model.copied_at_once, held) for held in copies_of)
    assert plan.decode(Decode(rows, longest, grows=True)) >= max(layer, some)


def test_a_layer_is_copied_beside_a_share_of_the_rest() -> None:
    plan, decode = planner(), Decode(8, 4096)
    steady = plan.steady_bytes(decode_terms(MODEL, decode))
    layer = 8 * (4096 + 256) * 4096
    grown = plan.decode(replace(decode, grows=True))
    assert grown == pytest.approx(1.05 * (1.2 * layer + 0.8 * steady), rel=0.001)


def test_a_layer_that_is_small_hides_behind_the_rest() -> None:
    plan = Planner(replace(MODEL, vocab=1 << 22), replace(FITTED, copies=(1.0, 0.0)))
    assert plan.decode(Decode(4, 9, grows=True)) == plan.decode(Decode(4, 9))


def test_prompts_that_are_read_together_are_there_twice() -> None:
    """Alone and in their batch, until all layers are made."""
    full = replace(MODEL, layers=LAYERS[:1])
    plan, only_copies = planner(full), 1.05 * 4 * 3 * 4096 * 4096
    for tokens, layer in ((64, 0), (300, 4 * (4096 + 512) * 4096)):  # there is room for 256
        prefill = PrefillShape(4, tokens, 4096)
        inner = weighted_sum(prefill_terms(full, prefill).inner, FITTED.together.deep[:3])
        assert plan.prefill(prefill) == pytest.approx(
            only_copies + 1.05 * (inner + layer), rel=0.01
        )


def test_a_prompt_behind_stored_tokens_has_a_layer_of_both_together() -> None:
    plain, refers = PrefillShape(1, 64, 4160), PrefillShape(1, 64, 4160, refers=True)
    assert prefill_terms(MODEL, plain).grown == 0
    assert prefill_terms(MODEL, refers).grown == int(1.1 * 4352 * 4096)
    assert prefill_terms(replace(MODEL, tiles=TILES), refers).grown == 0


def test_so_few_tokens_that_they_attend_in_parts_need_none() -> None:
    few = PrefillShape(1, FEW_QUERIES, 4160, refers=True)
    assert prefill_terms(MODEL, few).grown == 0
    arrays = replace(MODEL, layers=(replace(LAYERS[0], reads_padding=True),))
    assert prefill_terms(arrays, few).grown == int(1.1 * 4352 * 4096)
    half = replace(MODEL, width=2)
    apart = planner(half).prefill(few) - planner(half).prefill(replace(few, refers=False))
    assert apart == pytest.approx(1.05 * 3 * 4160 * 4 * 64 * 4, abs=2)


def test_rows_that_differ_or_share_are_gathered_where_attention_reads_arrays() -> None:
    arrays = replace(MODEL, layers=(replace(LAYERS[0], reads_padding=True),))
    equal = Decode(4, 4096)
    uneven, shared = replace(equal, uneven=True), replace(equal, refers=True)
    assert (
        gathered_bytes(arrays, equal)
        == gathered_bytes(MODEL, uneven)
        == gathered_bytes(MODEL, shared)
        == 0
    )
    layer = 4 * 4096 * 4096
    assert layer < gathered_bytes(arrays, uneven) < gathered_bytes(arrays, shared) < 2 * layer


def test_several_tokens_of_latents_are_planned_as_a_prefill_of_them() -> None:
    latent = replace(MODEL, layers=(replace(LAYERS[0], latent=True),))
    expanded = 2 * 4 * 4101 * 8 * 64 * 4  # keys and values of all heads
    assert decode_terms(latent, Decode(4, 4096)).unpacked == 0
    assert decode_terms(latent, Decode(4, 4096, tokens=5)).unpacked == expanded
    assert prefill_terms(latent, PrefillShape(4, 5, 4096)).unpacked == expanded
    plain, several = (planner(latent).decode(Decode(4, 4096, tokens=count)) for count in (1, 5))
    assert several > plain + 2 * expanded


def test_a_decode_of_several_tokens_writes_a_ring_anew() -> None:
    assert copied_ring_bytes(MODEL, Decode(4, 4096)) == 0
    assert copied_ring_bytes(MODEL, Decode(4, 4096, tokens=2)) == 4 * 512 * 4096
    assert copied_ring_bytes(replace(MODEL, layers=LAYERS[:1]), Decode(4, 4096, tokens=2)) == 0


def test_padded_rows_that_are_read_together_always_need_a_layer_more() -> None:
    padded = replace(MODEL, layers=(replace(LAYERS[0], keeps=Keeps.PADDED),))
    as_one = replace(MODEL, layers=(replace(LAYERS[0], reads_padding=True),))
    for model in (padded, as_one):
        assert prefill_terms(model, PrefillShape(4, 64, 4096)).grown == 4 * (4096 + 256) * 4096


# -- what lives ----------------------------------------------------------------------------------


def test_live_caches_have_room_for_more_tokens() -> None:
    plan = planner()
    row = 3 * 1256 * 4096 + 5 * 512 * 4096 + 2 * 70_000
    assert plan.live([1000]) == row
    assert plan.live([1000] * 8) == 8 * row
    assert plan.live([]) == plan.live([0] * 3) == 0


def test_a_prompt_under_way_holds_the_window_and_the_chunk_behind_it() -> None:
    plan = planner()
    full, ring, state = 1256 * 4096, (512 + 576 - 1) * 4096, 70_000
    assert plan.live([], [1000]) == 3 * full + 5 * ring + 2 * state
    wide = Planner(MODEL, FITTED, chunk=1024).live([], [4000])
    assert wide - plan.live([], [4000]) == 5 * (1152 - 576) * 4096
    assert plan.live([1000] * 8, [1000, 0, 9]) == (
        plan.live([1000] * 8) + plan.live([], [1000]) + plan.live([], [9])
    )


@EVERY
@given(rows=st.integers(1, 16), longest=st.integers(1, 9000), more=st.integers(0, 900))
def test_more_of_anything_lives_in_no_less(rows: int, longest: int, more: int) -> None:
    plan = planner()
    base = plan.live([longest] * rows, [longest])
    assert base >= cache_bytes(LAYERS, rows + 1, longest)
    assert plan.live([longest + more] * rows, [longest]) >= base
    assert plan.live([longest] * rows, [longest + more]) >= base
    assert plan.live([longest] * (rows + 1), [longest]) > base
    assert plan.live([longest] * rows, [longest, more]) >= base


def test_rings_hold_the_chunks_of_newcomers_until_they_decode() -> None:
    """Those of rows that were read together widen all."""
    plan, decode = planner(), Decode(8, 4000)
    alone, group = (PrefillShape(1, 512, 0), PrefillShape(1, 300, 64)), PrefillShape(3, 200, 512)
    for chunks, rings in (
        (alone, bytes_behind_rings(LAYERS, 512) + bytes_behind_rings(LAYERS, 300)),
        ((group,), 8 * bytes_behind_rings(LAYERS, 200)),
        ((*alone, group), 8 * bytes_behind_rings(LAYERS, 200)),
    ):
        worst = max(plan.decode(decode), *map(plan.prefill, chunks))
        step = StepShape(decode, chunks)
        assert plan.transient(step) == plan.corrected(step, 0.0) == worst + rings
        assert plan.transient(StepShape(None, chunks)) == max(map(plan.prefill, chunks))


def test_rings_are_no_part_of_what_a_correction_raises() -> None:
    plan, step = planner(), StepShape(Decode(1, 9), (PrefillShape(1, 512, 0),))
    own = plan.prefill(step.prefills[0])
    plan.observe(step, 2 * own, 0.0)
    raised = 2 * own + bytes_behind_rings(LAYERS, 512)
    assert plan.corrected(step, 0.0) == pytest.approx(raised, abs=2)


def test_the_bound_is_above_a_fit() -> None:
    for step in (
        StepShape(prefills=(PrefillShape(4, 128, 900),)),
        StepShape(Decode(8, 4000, grows=True)),
    ):
        assert Planner(MODEL, STRUCTURAL).transient(step) > 2 * planner().transient(step)
    assert not STRUCTURAL.calibrated


def test_a_step_that_took_more_raises_the_next_estimates_of_its_kind() -> None:
    plan = planner()
    step = StepShape(prefills=(PrefillShape(1, 256, 1024),))
    decode = StepShape(Decode(4, 900))
    before = plan.corrected(step, 0.0), plan.corrected(decode, 0.0)
    assert before == (plan.transient(step), plan.transient(decode))
    plan.observe(step, 2 * plan.transient(step), 0.0)
    assert abs(plan.corrected(step, 0.0) - 2 * plan.transient(step)) <= 1
    assert plan.corrected(decode, 0.0) == before[1]
    assert plan.corrected(step, 60 * HALF_LIFE_SECONDS) == before[0]
    plan.observe(decode, 3 * plan.transient(decode), 0.0)
    assert plan.corrected(decode, 0.0) > 2.9 * plan.transient(decode)


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
        assert 1.0 <= correction.ratio(now) <= HIGHEST_RATIO
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


def test_a_draft_model_that_catches_up_is_planned_beside_a_decode() -> None:
    """Not in addition: one is done when the other begins."""
    small = replace(MODEL, hidden=64, intermediate=128, layers=())
    pair = replace(MODEL, drafter=small)
    plain = planner(pair).decode(Decode(4, 4096))
    assert plain == planner().decode(Decode(4, 4096))
    behind = planner(pair).decode(Decode(4, 4096, catches_up=True))
    inner = prefill_terms(small, PrefillShape(4, MOST_BEHIND, 4096)).inner
    assert behind == pytest.approx(1.05 * weighted_sum(inner, FITTED.alone.deep[:3]), rel=0.01)
    assert behind > plain
    decode = planner(pair).worst_decode([4000] * 4)
    assert decode is not None and decode.catches_up
