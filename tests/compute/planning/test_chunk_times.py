"""Times of chunks: what is measured, what is not, and what is kept."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.chunk_times import ChunkTimes, timing_chunks, timing_depths
from omlx_server.compute.planning.plan_file import planner_for
from omlx_server.compute.planning.probe import ForwardProbe, layers_of
from omlx_server.core.chunk_sizes import ChunkPace
from omlx_server.core.memory.kv import PrefillShape, cache_bytes
from omlx_server.core.work import finish
from tests.compute.planning.loaded import AFFINE, load

SIZES = [16, 32, 64]
ARCHITECTURES = ("llama", "gemma3_text", "qwen3_next", "falcon_h1")


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load("llama")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[PrefillShape]:
    """Every forward whose time is measured."""
    seen: list[PrefillShape] = []
    real = ForwardProbe.prefill_seconds

    def prefill_seconds(self: ForwardProbe, prefill: PrefillShape) -> float:
        seen.append(prefill)
        return real(self, prefill)

    monkeypatch.setattr(ForwardProbe, "prefill_seconds", prefill_seconds)
    return seen


def pretend(monkeypatch: pytest.MonkeyPatch, token: float) -> list[int]:
    """A machine that takes `token` seconds a token. Returns the sizes that are measured on it."""
    seen: list[int] = []

    def prefill_seconds(self: ForwardProbe, prefill: PrefillShape) -> float:
        seen.append(prefill.tokens)
        return token * prefill.tokens

    monkeypatch.setattr(ForwardProbe, "prefill_seconds", prefill_seconds)
    return seen


def times_of(loaded: LoadedModel, file: Path | None = None, sizes: list[int] = SIZES) -> ChunkTimes:
    times = finish(timing_chunks(loaded, sizes, file))
    assert times is not None
    return times


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_size_is_measured_for_caches_of_every_kind(architecture: str) -> None:
    times = times_of(load(architecture))
    assert list(times) == SIZES and min(times.values()) > 0


def test_so_it_is_for_keys_and_values_in_few_bits() -> None:
    assert list(times_of(load("qwen3", AFFINE))) == SIZES


def test_all_chunks_have_one_middle(llama: LoadedModel, timed: list[PrefillShape]) -> None:
    """So attention sees as many tokens for each token of a small chunk as of a large one."""
    times_of(llama, sizes=[128, 256])
    assert {probe.context + probe.tokens // 2 for probe in timed} == {128}
    assert {probe.tokens for probe in timed} == {8, 64, 128, 256}


def test_a_slow_machine_is_not_asked_for_more_than_it_may_take(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = pretend(monkeypatch, 2 / 600)
    times = times_of(llama, sizes=[256, 512, 1024, 2048])
    assert list(times) == [256, 512]
    assert seen == [8, 8, 64, 64, 256, 256, 512, 512]


def test_a_very_slow_one_is_asked_for_a_few_tokens(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = pretend(monkeypatch, 0.1)
    assert times_of(llama, sizes=[256, 512]) == {}
    assert seen == [8, 8]
    seen = pretend(monkeypatch, 0.05)
    assert times_of(llama, sizes=[256, 512]) == {}
    assert seen == [8, 8, 64, 64]


def test_a_model_that_cannot_be_probed_gets_a_default(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: ForwardProbe, prefill: PrefillShape) -> float:
        raise RuntimeError("[malloc] Unable to allocate 12 bytes.")

    monkeypatch.setattr(ForwardProbe, "prefill_seconds", refuse)
    with caplog.at_level(logging.WARNING):
        assert finish(timing_chunks(llama, SIZES)) is None
    assert "Unable to allocate" in caplog.text


# -- the file ------------------------------------------------------------------------------------


def test_times_are_kept_beside_the_plan(
    llama: LoadedModel, tmp_path: Path, timed: list[PrefillShape]
) -> None:
    file = tmp_path / "deep" / "plans.json"
    planned = planner_for(llama, file).coefficients
    times = times_of(llama, file)
    timed.clear()
    assert times_of(llama, file) == times
    assert planner_for(llama, file).coefficients == planned
    assert not timed


def test_those_of_a_slow_machine_are_kept_too(
    llama: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = pretend(monkeypatch, 10)
    for _ in range(2):
        assert times_of(llama, tmp_path / "plans.json") == {}
    assert seen == [8, 8]


def test_other_sizes_and_other_models_are_measured_anew(
    llama: LoadedModel, tmp_path: Path, timed: list[PrefillShape]
) -> None:
    file = tmp_path / "plans.json"
    times_of(llama, file)
    others = ((llama, [32, 64]), (replace(llama, fingerprint="other"), SIZES))
    for loaded, sizes in others:
        timed.clear()
        times_of(loaded, file, sizes)
        assert timed
    timed.clear()
    times_of(llama, file)
    assert not timed


def _truncate(text: str) -> str:
    return text[:-20]


def _poison(text: str) -> str:
    return json.dumps({key: {**value, "16": float("nan")} for key, value in _of(text)})


def _negate(text: str) -> str:
    return json.dumps({key: {**value, "32": -1.0} for key, value in _of(text)})


def _turn_round(text: str) -> str:
    return json.dumps({key: dict(reversed(value.items())) for key, value in _of(text)})


def _add(text: str) -> str:
    return json.dumps({key: {**value, "128": 1.0} for key, value in _of(text)})


def _list(text: str) -> str:
    return json.dumps({key: [1, 2] for key, value in _of(text)})


def _of(text: str) -> list[tuple[str, dict[str, float]]]:
    return list(json.loads(text).items())


@pytest.mark.parametrize("damage", [_truncate, _poison, _negate, _turn_round, _add, _list])
def test_a_damaged_file_costs_a_measurement(
    llama: LoadedModel, tmp_path: Path, timed: list[PrefillShape], damage: Callable[[str], str]
) -> None:
    file = tmp_path / "plans.json"
    times_of(llama, file)
    file.write_text(damage(file.read_text()))
    for measured in (True, False):
        timed.clear()
        assert list(times_of(llama, file)) == SIZES
        assert bool(timed) == measured


def test_nothing_is_written_where_that_is_not_allowed(llama: LoadedModel, tmp_path: Path) -> None:
    file = tmp_path / "plans.json"
    finish(timing_chunks(llama, SIZES, file, lambda: False))
    assert not file.exists()


# -- by depth --------------------------------------------------------------------------------


def slow_with_depth(monkeypatch: pytest.MonkeyPatch, slope: float) -> list[PrefillShape]:
    """A machine on which a token takes a millisecond, and `slope` more for each one before it."""
    seen: list[PrefillShape] = []

    def prefill_seconds(self: ForwardProbe, prefill: PrefillShape) -> float:
        seen.append(prefill)
        depth = prefill.context + prefill.tokens / 2
        return prefill.tokens * (0.001 + slope * depth)

    monkeypatch.setattr(ForwardProbe, "prefill_seconds", prefill_seconds)
    return seen


def pace_of(loaded: LoadedModel, file: Path | None = None, most_bytes: int = 1 << 30) -> ChunkPace:
    pace = finish(timing_depths(loaded, SIZES, {}, most_bytes, file))
    assert pace is not None
    return pace


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_depths_are_measured_for_caches_of_every_kind(architecture: str) -> None:
    pace = pace_of(load(architecture))
    assert [size for size, _ in pace.by_size] == [1, 8, 16, 64]
    assert [depth for depth, _ in pace.by_depth] == [32, 256, 1024, 4096, 16384]
    assert pace.layers == len(load(architecture).model.layers)
    assert 0 < pace.growing <= pace.layers


def test_the_time_of_a_chunk_is_predicted_at_any_depth(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_with_depth(monkeypatch, 1e-8)
    pace = pace_of(llama)
    for start in (2048, 10_000, 100_000, 1 << 20):
        expected = 64 * (0.001 + 1e-8 * (start + 32))
        assert pace.chunk_seconds(64, start) == pytest.approx(expected, rel=0.05)


def test_no_depth_is_measured_that_could_take_long(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = slow_with_depth(monkeypatch, 1e-4)
    pace_of(llama)
    assert max(shape.context for shape in seen) < 4096
    seen = slow_with_depth(monkeypatch, 1.0)
    assert finish(timing_depths(llama, SIZES, {}, 1 << 30)) is None  # at no depth
    assert {shape.tokens for shape in seen} == {1}


def test_a_model_with_large_caches_is_measured_as_deep_as_they_may_be(llama: LoadedModel) -> None:
    per_token = cache_bytes(layers_of(llama.model), 1, 1024) // 1024
    pace = pace_of(llama, most_bytes=1000 * per_token)
    assert [depth for depth, _ in pace.by_depth] == [32, 256, 1000]


def test_depths_are_kept_and_a_damaged_file_measures_again(
    llama: LoadedModel, timed: list[PrefillShape], tmp_path: Path
) -> None:
    file = tmp_path / "steps.json"
    pace = pace_of(llama, file)
    count = len(timed)
    assert pace_of(llama, file) == pace and len(timed) == count
    plans = json.loads(file.read_text())
    [key] = [key for key in plans if "depths" in key]
    damaged: Any
    kept = plans[key]
    wrong: tuple[dict[str, Any], ...] = (
        {"layers": 0},
        {"by_size": []},
        {"by_size": [[1, -1.0]]},
        {"by_depth": None},
    )
    for damaged in ({}, [], *({**kept, **field} for field in wrong)):
        file.write_text(json.dumps({**plans, key: damaged}))
        count = len(timed)
        pace_of(llama, file)
        assert len(timed) > count


def test_times_that_are_known_are_not_measured_again(
    llama: LoadedModel, timed: list[PrefillShape]
) -> None:
    times = times_of(llama)
    timed.clear()
    pace = finish(timing_depths(llama, SIZES, times, 1 << 30))
    assert pace is not None
    assert [size for size, _ in pace.by_size] == [1, 8, 16, 32, 64]
    assert {shape.tokens for shape in timed} == {1, 8, 64}
