"""The memory of a tower's pass: planned by short probes, in the same file as that of steps."""

import json
import logging
from functools import partial
from pathlib import Path
from statistics import median_low

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning import tower_plan
from omlx_server.compute.planning.plan_file import planner_for
from omlx_server.compute.planning.probe import measure_peak
from omlx_server.compute.planning.tower_plan import planning_tower
from omlx_server.compute.prefill import Prefiller
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.compute.vision.vision import pass_over
from omlx_server.core.images import images_within, stop_at_image
from omlx_server.core.memory.encoder import STRUCTURAL
from omlx_server.core.memory.kv import PrefillShape
from omlx_server.core.request import RequestId
from omlx_server.core.step import Chunk, SequenceId
from omlx_server.core.work import finish
from tests.compute.vision.prompts import FAMILIES, Told, load_with_vision, picture, vision_of
from tests.tiny_models import load_tiny

ANY_GRID = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
HELD_OUT: tuple[Grid, ...] = ((1, 36, 36), (1, 16, 88), (1, 44, 44), (1, 60, 36))


CHUNK = 256
LUCK = 1 << 16
"""By so many bytes runs differ, and so many a plan has at least."""


def took(loaded: LoadedModel, grid: Grid) -> int:
    """Of some runs, because how many buffers are alive at once differs a little."""
    tower = vision_of(loaded).tower
    pixels = np.zeros(tower.pixel_shape(grid), dtype=np.float32)
    peaks = [
        measure_peak(lambda: finish(tower.computing(mx.array(pixels), grid))) for _ in range(5)
    ]
    return median_low([peak.peak - peak.before for peak in peaks])


@pytest.mark.parametrize("name", ANY_GRID)
def test_a_pass_takes_what_is_planned(name: str) -> None:
    loaded = load_with_vision(name)
    finish(planning_tower(loaded))
    plan = vision_of(loaded).plan
    for grid in HELD_OUT:
        ratio = plan.needs(pass_over(grid)) / took(loaded, grid)
        assert 0.95 <= ratio <= 1.5, (grid, ratio)


@pytest.mark.parametrize("name", ["gemma3", "idefics3"])
def test_so_does_one_over_the_only_size_of_images(name: str) -> None:
    loaded = load_with_vision(name)
    tower = vision_of(loaded).tower
    finish(planning_tower(loaded))
    grid = tower.grid_of(5)
    assert grid == tower.grid_of(5000)
    needs = vision_of(loaded).plan.needs(pass_over(grid))
    own = took(loaded, grid)
    assert 0.95 * own - LUCK <= needs <= 1.5 * own + 2 * LUCK


def test_factors_are_kept_for_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, notes = load_with_vision("qwen2_vl"), tmp_path / "steps.json"
    notes.write_text(json.dumps({"another": {"model": [1.0]}}))
    finish(planning_tower(loaded, notes))
    found, kept = vision_of(loaded).plan, json.loads(notes.read_text())
    assert len(kept) == 2 and "another" in kept
    monkeypatch.setattr(
        tower_plan, "_bytes_of_pass", lambda tower, grid: pytest.fail("probed again")
    )
    again = load_with_vision("qwen2_vl")
    finish(planning_tower(again, notes))
    assert vision_of(again).plan == found


def test_what_may_not_be_written_is_not(tmp_path: Path) -> None:
    notes = tmp_path / "steps.json"
    finish(planning_tower(load_with_vision("gemma3"), notes, lambda: False))
    assert not notes.exists()


def test_where_nothing_can_be_measured_a_bound_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    loaded, notes = load_with_vision("qwen3_vl"), tmp_path / "steps.json"
    monkeypatch.setattr(tower_plan, "_bytes_of_pass", lambda tower, grid: 0)
    with caplog.at_level(logging.WARNING):
        finish(planning_tower(loaded, notes))
    assert "bounded, not measured" in caplog.text and not notes.exists()
    plan = vision_of(loaded).plan
    assert plan.factors == STRUCTURAL
    for grid in HELD_OUT:
        assert plan.needs(pass_over(grid)) >= took(loaded, grid)


def test_a_model_for_text_has_no_tower_to_probe() -> None:
    assert list(planning_tower(load_tiny("llama"))) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chunk_with_images_takes_as_much_as_one_of_text(name: str) -> None:
    """Its plan is that of one of text."""
    loaded = load_with_vision(name)
    told = Told(name).then([1])
    while len(told.tokens) < CHUNK:
        told = told.then(picture(name, len(told.tokens), (1, 12, 10)), [1])
    stop = stop_at_image(told.images, 0, CHUNK)
    id = SequenceId(RequestId("x"), 0)
    seen = Chunk(id, 0, told.tokens[:stop], images=images_within(told.images, 0, stop))
    read = Chunk(id, 0, (1,) * stop)

    def run(chunk: Chunk) -> Prefiller:
        prefiller = Prefiller(loaded.model, batchable=True, vision=loaded.vision)
        prefiller.run([chunk])
        return prefiller

    run(seen)  # the features of its images are there then
    # The most of some runs, because on a busy machine arrays are freed sooner or later.
    pairs = [[measure_peak(partial(run, c)).transient for c in (seen, read)] for _ in range(6)]
    of_images, of_text = map(max, zip(*pairs, strict=True))
    assert 0.9 <= of_images / of_text <= 1.15
    # A plan that is probed on a busy machine may be too low, so some are tried.
    plans = (planner_for(loaded).prefill(PrefillShape(1, stop, 0)) for _ in range(5))
    assert any(0.95 <= planned / of_images <= 1.5 for planned in plans)
