"""Probes of tiny models: what is measured, what is made of it, what is kept of it."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes import affine, turboquant_tiles
from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning import calibrate as calibration
from omlx_server.compute.planning.model_shape import shape_of, structural_shape, tiles_of
from omlx_server.compute.planning.plan_file import key_of, planner_for
from omlx_server.compute.planning.probe import (
    ForwardProbe,
    Peak,
    filled_caches,
    layers_of,
    one_token_caches,
)
from omlx_server.core.memory.estimate import STRUCTURAL, Planner
from omlx_server.core.memory.features import decode_terms
from omlx_server.core.memory.kv import Decode, PrefillShape, StepShape, cache_bytes
from omlx_server.core.work import finish
from tests.compute.planning.loaded import AFFINE, TURBOQUANT, load
from tests.tiny_models import load_tiny

ARCHITECTURES = ("llama", "qwen3", "gemma3_text", "qwen3_next", "gpt_oss", "deepseek_v3", "lfm2")
HELD_OUT = (
    PrefillShape(1, 256, 1536),
    PrefillShape(1, 384, 1024),
    PrefillShape(6, 64, 1024),
    Decode(8, 2048),
    Decode(6, 2048, grows=True),
)


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load("llama")


# -- caches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tokens", [1, 255, 256, 300, 513])
def test_bytes_by_arithmetic_are_those_of_caches_that_were_read(
    architecture: str, tokens: int
) -> None:
    loaded = load(architecture)
    read = cache_ops.new_caches(loaded.model)
    for start in range(0, tokens, 256):
        count = min(256, tokens - start)
        loaded.model(mx.zeros((1, count), dtype=mx.int32), cache=read)
        cache_ops.evaluate(read, wait=True)
        last = count
    held = sum(leaf.nbytes for leaf in leaves(read))
    assert cache_bytes(layers_of(loaded.model), 1, tokens, last) == held


@pytest.mark.parametrize("scheme", [AFFINE, TURBOQUANT], ids=lambda s: s.name)
def test_bytes_of_quantised_caches(scheme: Scheme) -> None:
    loaded = load("qwen3", scheme)
    read = cache_ops.new_caches(loaded.model)
    loaded.model(mx.zeros((1, 300), dtype=mx.int32), cache=read)
    cache_ops.evaluate(read, wait=True)
    held = sum(leaf.nbytes for leaf in leaves(read))
    assert cache_bytes(layers_of(loaded.model), 1, 300, 300) == held


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_filled_caches_are_as_large_as_read_ones_and_can_be_read_on(architecture: str) -> None:
    loaded = load(architecture)
    read = cache_ops.new_caches(loaded.model)
    for _ in range(2):
        loaded.model(mx.zeros((1, 100), dtype=mx.int32), cache=read)
    made = filled_caches(loaded.model, 200, 100, one_token_caches(loaded.model))
    for caches in (read, made):
        loaded.model(mx.zeros((1, 7), dtype=mx.int32), cache=caches)
        cache_ops.evaluate(caches, wait=True)
    sizes = [[leaf.nbytes for leaf in leaves(caches)] for caches in (made, read)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("scheme", [AFFINE, TURBOQUANT], ids=lambda s: s.name)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("tokens", [1, 100])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_tiles_are_those_that_attention_reads(
    scheme: Scheme, rows: int, tokens: int, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(scheme, TurboQuant):  # affine tiles of a GPU are wider than what is planned
        monkeypatch.setattr(device, "is_cpu", lambda: on_cpu)
    heads, kv_heads, dim, total = 8, 4, 64, 8192
    queries = mx.zeros((rows, heads, tokens, dim))
    tiles = tiles_of(scheme)
    assert tiles is not None
    if isinstance(scheme, Affine):
        words, scales = mx.zeros((rows, kv_heads, total, 8)), mx.zeros((rows, kv_heads, total, 2))
        keys = (words, scales, scales)
        size = affine.tiles_for(queries, keys, keys, 4, 32).size
    else:
        pair = (mx.zeros((rows, kv_heads, total, 8)), mx.zeros((rows, kv_heads, total, 1)))
        size = turboquant_tiles.tiles_for(queries, pair, pair, (4, 4), dim).size
    many = tokens * heads // kv_heads >= tiles.many_rows
    numbers = tiles.numbers_of_many if many else tiles.numbers_of_few
    assert size == min(total, max(tiles.fewest, numbers // (rows * kv_heads * dim)))


# -- probes ------------------------------------------------------------------------------------


def test_a_peak_is_what_is_alive_above_the_caches(llama: LoadedModel) -> None:
    """Scores of 256 queries and 1,792 keys in 4 heads are alive at least once, and not thrice."""
    peak = ForwardProbe(llama).prefill(PrefillShape(1, 256, 1536))
    scores = 4 * 256 * 1792 * 4
    assert scores < peak.transient < 3 * scores
    grown = 256 * 2 * 2 * 2 * 16 * 4
    assert peak.transient == peak.peak - peak.after
    assert peak.after - peak.before == pytest.approx(grown, abs=1 << 15)


def test_what_a_bench_holds_itself_is_nobodys(llama: LoadedModel) -> None:
    ForwardProbe(llama).prefill(PrefillShape(1, 8, 0))
    mx.synchronize()
    before = mx.get_active_memory()
    assert ForwardProbe(llama).prefill(PrefillShape(1, 8, 0)).before == pytest.approx(
        before, abs=1 << 15
    )


def test_a_decode_that_grows_copies_a_layer(llama: LoadedModel) -> None:
    """At most: what MLX is done with in time, it uses again, and on a busy machine that differs."""
    peaks = [ForwardProbe(llama).decode(Decode(4, 1024, grows=True)) for _ in range(10)]
    layer = 4 * (1024 + 256) * 2 * 2 * 16 * 4
    peak = max(peaks, key=lambda peak: peak.transient)
    assert layer <= peak.transient < 2 * layer
    assert peak.after - peak.before == pytest.approx(2 * 4 * 256 * 2 * 2 * 16 * 4, abs=1 << 15)


@pytest.mark.parametrize(
    ("context", "takes", "worst"), [(1000, [5, 9], 9), (1000, [9, 5], 9), (1024, [5], 5)]
)
def test_the_worse_of_two_decodes_counts_unless_the_second_grows(
    llama: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    context: int,
    takes: list[int],
    worst: int,
) -> None:
    left = list(takes)

    def measured(self: ForwardProbe, run: Callable[[], object]) -> Peak:
        run()
        return Peak(0, 0, left.pop(0))

    monkeypatch.setattr(ForwardProbe, "measure", measured)
    assert ForwardProbe(llama).decode(Decode(2, context)).transient == worst
    assert not left


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
def test_probes_leave_the_memory_as_it_was(architecture: str) -> None:
    loaded = load(architecture)
    shape = shape_of(loaded)
    ForwardProbe(loaded).prefill(PrefillShape(1, 8, 0))
    mx.synchronize()
    before = mx.get_active_memory()
    assert finish(calibration.calibrating(loaded, shape)).calibrated
    assert abs(mx.get_active_memory() - before) < 4096
    assert mx.get_cache_memory() == 0


def ratio(
    bench: ForwardProbe, planner: Planner, step: Decode | PrefillShape, below: float
) -> float:
    """What was estimated, over the most that some runs took: ten, or as many as it takes until it
    is below that. On a busy machine a run can take less, since the host then frees an array before
    it makes the next."""
    if isinstance(step, Decode):
        planned, run = planner.decode(step), partial(bench.decode, step)
    else:
        planned, run = planner.prefill(step), partial(bench.prefill, step)
    most = max(run().transient for _ in range(3))
    for _ in range(7):
        if planned / most < below:
            break
        most = max(most, run().transient)
    return planned / most


@pytest.mark.parametrize(
    ("architecture", "scheme"),
    [("llama", None), ("gemma3_text", None), ("qwen3_next", None), ("qwen3", AFFINE)],
)
def test_larger_shapes_than_probed_take_what_was_estimated(
    architecture: str, scheme: Scheme | None
) -> None:
    """Loosely: what is alive in a step this small depends on how far the host happens to be ahead,
    in a decode that grows above all: a bound of whole copies is planned for it, and MLX often uses
    one buffer for several of them. scripts/bench memory has the real bounds."""
    loaded = load(architecture, scheme)
    planner, bench = planner_for(loaded), ForwardProbe(loaded)
    for step in HELD_OUT:
        grows = isinstance(step, Decode) and step.grows
        most = 8.0 if grows else 2.0
        assert 0.6 < ratio(bench, planner, step, most) < most, step


def test_codes_of_all_tokens_take_what_was_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What TurboQuant reads at once on a GPU grows with the context, and so does the estimate."""
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    loaded = load("qwen3", TURBOQUANT)
    planner, bench = planner_for(loaded), ForwardProbe(loaded)
    for step in (Decode(8, 2048), Decode(1, 8000), Decode(4, 4000)):
        assert 0.9 < ratio(bench, planner, step, 1.6) < 1.6, step


def test_scores_that_only_the_last_layer_has_are_known_of_decodes() -> None:
    """A prefill never makes those; of a chunk without a context the rings show what they are."""
    loaded = load_tiny("gemma3_text", sliding_window=512, vocab_size=20_000)
    planner, bench = planner_for(loaded), ForwardProbe(loaded)
    decode, wide = Decode(8, 4000), PrefillShape(1, 512, 0)
    most = max(bench.decode(decode).transient for _ in range(4))  # by luck the scores are gone
    assert 0.9 < planner.decode(decode) / most < 1.6
    assert 0.9 < planner.prefill(wide) / bench.prefill(wide).transient < 1.6


def test_a_model_that_runs_one_sequence_at_a_time_is_probed_with_one(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    decodes: list[Decode] = []
    real = ForwardProbe.decode

    def decode(self: ForwardProbe, decode: Decode) -> Peak:
        decodes.append(decode)
        return real(self, decode)

    monkeypatch.setattr(cache_ops, "can_batch", lambda caches: False)
    monkeypatch.setattr(ForwardProbe, "decode", decode)
    found = finish(calibration.calibrating(llama, shape_of(llama)))
    assert found.calibrated
    assert found.together == found.alone
    assert {decode.rows for decode in decodes} == {1}
    assert any(decode.grows for decode in decodes)


@pytest.mark.parametrize("scheme", [None, AFFINE])
def test_a_copy_is_at_least_as_large_as_what_is_copied(
    monkeypatch: pytest.MonkeyPatch, scheme: Scheme | None
) -> None:
    """However little of it short probes show, by luck."""
    real = ForwardProbe.prefill

    def prefill(self: ForwardProbe, prefill: PrefillShape) -> Peak:
        return Peak(0, 0, 1) if prefill.rows > 1 else real(self, prefill)

    monkeypatch.setattr(ForwardProbe, "prefill", prefill)
    monkeypatch.setattr(ForwardProbe, "decode", lambda self, decode: Peak(0, 0, 1))
    found = planner_for(load("qwen3", scheme)).coefficients
    assert found.copies == (1.0, 0.0 if scheme else 1.0)
    assert found.together.deep == (*found.alone.deep[:3], 0.0, 1.0)


def measured_once(measure: Callable[[ForwardProbe, Any], Peak]) -> Callable[..., Peak]:
    peaks = dict[object, Peak]()

    def measured(self: ForwardProbe, shape: object) -> Peak:
        if shape not in peaks:
            peaks[shape] = measure(self, shape)
        return peaks[shape]

    return measured


@pytest.mark.parametrize(
    ("scheme", "layers", "rest", "copies"),
    [
        (None, 1.0, 0.5, (1.0, 1.0)),
        (None, 1.5, 1.0, (1.5, 1.0)),
        (AFFINE, 1.0, 0.5, (1.0, 0.5)),
        (AFFINE, 1.5, 1.0, (1.5, 1.0)),
        (AFFINE, 0.7, 0.0, (1.0, 0.0)),
    ],
)
def test_what_a_decode_takes_besides_a_layer_is_known(
    monkeypatch: pytest.MonkeyPatch,
    scheme: Scheme | None,
    layers: float,
    rest: float,
    copies: tuple[float, float],
) -> None:
    # What is measured of the rest is the same both times.
    monkeypatch.setattr(ForwardProbe, "prefill", measured_once(ForwardProbe.prefill))
    real = measured_once(ForwardProbe.decode)
    monkeypatch.setattr(ForwardProbe, "decode", real)
    loaded = load("qwen3", scheme)
    known = planner_for(loaded)
    shape = known.model

    def decode(self: ForwardProbe, decode: Decode) -> Peak:
        if not decode.grows:
            return real(self, decode)
        terms = decode_terms(shape, decode)
        return Peak(0, 0, int(layers * terms.grown + rest * known.steady_bytes(terms)))

    monkeypatch.setattr(ForwardProbe, "decode", decode)
    found = finish(calibration.calibrating(loaded, shape))
    assert found.copies == pytest.approx(copies, rel=0.3)


@pytest.mark.parametrize("architecture", ["llama", "qwen3_next", "deepseek_v3"])
def test_the_structural_bound_is_one(architecture: str) -> None:
    loaded = load(architecture)
    planner, bench = Planner(shape_of(loaded), STRUCTURAL), ForwardProbe(loaded)
    assert min(ratio(bench, planner, step, 1.0) for step in HELD_OUT) > 1.0


# -- what can't be probed ------------------------------------------------------------------------


def test_a_model_with_unknown_caches_is_bounded_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = load("llama4")
    with caplog.at_level(logging.WARNING):
        planner = planner_for(loaded)
    assert not planner.coefficients.calibrated
    assert "bounded, not measured" in caplog.text
    assert "ChunkedKVCache" in caplog.text
    assert planner.transient(StepShape(Decode(1, 900))) > 0
    assert planner.model == structural_shape(loaded.dims)


def test_a_probe_that_fails_is_a_bound(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: ForwardProbe, decode: Decode) -> None:
        raise RuntimeError("[malloc] Unable to allocate 12 bytes.")

    monkeypatch.setattr(ForwardProbe, "layers", refuse)
    with caplog.at_level(logging.WARNING):
        assert finish(calibration.calibrating(llama, shape_of(llama))) == STRUCTURAL
    assert "Unable to allocate" in caplog.text


@pytest.mark.parametrize(
    ("token", "bounded"),
    [(0.02, ""), (0.2, "prefills, batches"), (10.0, "decodes, logits, copies, prefills, batches")],
)
def test_a_slow_model_is_measured_as_far_as_there_is_time(
    llama: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    token: float,
    bounded: str,
) -> None:
    real, tokens = ForwardProbe.prefill, 0

    def prefill(self: ForwardProbe, prefill: PrefillShape) -> Peak:
        nonlocal tokens
        tokens += prefill.rows * prefill.tokens
        return real(self, prefill)

    monkeypatch.setattr(ForwardProbe, "prefill", prefill)
    monkeypatch.setattr(calibration, "perf_counter", lambda: token * tokens)
    with caplog.at_level(logging.WARNING):
        coefficients = finish(calibration.calibrating(llama, shape_of(llama)))
    assert coefficients.calibrated == (not bounded)
    assert (f"the memory of {bounded} is bounded" in caplog.text) == bool(bounded)
    assert (coefficients.alone == STRUCTURAL.alone) == bool(bounded)
    assert (coefficients.layers == STRUCTURAL.layers) == ("decodes" in bounded)
    assert token * tokens < 30.0 or tokens == 16


# -- the file ------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[PrefillShape]:
    """Every prefill that is probed."""
    seen: list[PrefillShape] = []
    real = ForwardProbe.prefill

    def prefill(self: ForwardProbe, prefill: PrefillShape) -> Peak:
        seen.append(prefill)
        return real(self, prefill)

    monkeypatch.setattr(ForwardProbe, "prefill", prefill)
    return seen


def test_coefficients_are_kept(
    llama: LoadedModel, tmp_path: Path, counted: list[PrefillShape]
) -> None:
    file = tmp_path / "deep" / "plans.json"
    first = planner_for(llama, file)
    assert counted
    counted.clear()
    assert planner_for(llama, file).coefficients == first.coefficients
    assert not counted


def _truncate(text: str) -> str:
    return text[:-20]


def _shorten(text: str) -> str:
    return json.dumps(
        {key: {**value, "head": value["head"][1:]} for key, value in json.loads(text).items()}
    )


def _poison(text: str) -> str:
    return json.dumps(
        {key: {**value, "head": [float("nan")] * 4} for key, value in json.loads(text).items()}
    )


def _negate(text: str) -> str:
    return json.dumps(
        {key: {**value, "layers": [-1.0] * 3} for key, value in json.loads(text).items()}
    )


def _list(text: str) -> str:
    return "[1, 2]"


@pytest.mark.parametrize("damage", [_truncate, _shorten, _poison, _negate, _list])
def test_a_damaged_file_costs_a_probing(
    llama: LoadedModel, tmp_path: Path, counted: list[PrefillShape], damage: Callable[[str], str]
) -> None:
    file = tmp_path / "plans.json"
    planner_for(llama, file)
    file.write_text(damage(file.read_text()))
    counted.clear()
    assert planner_for(llama, file).coefficients.calibrated
    assert counted
    counted.clear()
    planner_for(llama, file)
    assert not counted


def test_what_the_file_holds_is_for_one_form_of_one_model(llama: LoadedModel) -> None:
    other = replace(llama, fingerprint="other")
    half = replace(llama, dims=replace(llama.dims, dtype="bfloat16"))
    keys = {key_of(model) for model in (llama, other, half, load("qwen3"), load("qwen3", AFFINE))}
    assert len(keys) == 5


def test_a_file_that_cannot_be_written_is_done_without(
    llama: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert planner_for(llama, tmp_path / "file" / "plans.json").coefficients.calibrated
    assert "can't be written" in caplog.text
