"""The memory of a tower's pass: planned by short probes, in the same file as that of steps."""

import json
import logging
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning import tower_plan
from omlx_server.compute.planning.probe import measured
from omlx_server.compute.planning.tower_plan import planning_tower
from omlx_server.compute.vision.eyes import pass_over
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.core.memory.encoder import STRUCTURAL
from omlx_server.core.work import finish
from tests.compute.vision.pictures import eyes_of, load_seeing
from tests.tiny_models import load_tiny

ANY_GRID = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
HELD_OUT: tuple[Grid, ...] = ((1, 24, 24), (1, 12, 60), (1, 40, 40), (1, 60, 36))


def took(loaded: LoadedModel, grid: Grid) -> int:
    tower = eyes_of(loaded).tower
    shape = tower.pixel_shape(grid)
    peak = measured(lambda: finish(tower.computing(mx.zeros(shape), grid)))
    return peak.peak - peak.before


@pytest.mark.parametrize("name", ANY_GRID)
def test_a_pass_takes_what_is_planned(name: str) -> None:
    loaded = load_seeing(name)
    finish(planning_tower(loaded))
    plan = eyes_of(loaded).plan
    for grid in HELD_OUT:
        ratio = plan.needs(pass_over(grid)) / took(loaded, grid)
        assert 0.95 <= ratio <= 1.5, (grid, ratio)


@pytest.mark.parametrize("name", ["gemma3", "idefics3"])
def test_so_does_one_over_the_only_size_of_images(name: str) -> None:
    loaded = load_seeing(name)
    tower = eyes_of(loaded).tower
    finish(planning_tower(loaded))
    grid = tower.grid_of(5)
    assert grid == tower.grid_of(5000)
    needs = eyes_of(loaded).plan.needs(pass_over(grid))
    most = max(took(loaded, grid) for _ in range(8))  # so little differs from run to run
    assert 0.95 * most <= needs <= 1.5 * most + (1 << 16)  # the floor of a plan


def test_factors_are_kept_for_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, notes = load_seeing("qwen2_vl"), tmp_path / "steps.json"
    notes.write_text(json.dumps({"another": {"model": [1.0]}}))
    finish(planning_tower(loaded, notes))
    found, kept = eyes_of(loaded).plan, json.loads(notes.read_text())
    assert len(kept) == 2 and "another" in kept
    monkeypatch.setattr(tower_plan, "_took", lambda tower, grid: pytest.fail("probed again"))
    again = load_seeing("qwen2_vl")
    finish(planning_tower(again, notes))
    assert eyes_of(again).plan == found


def test_what_may_not_be_written_is_not(tmp_path: Path) -> None:
    notes = tmp_path / "steps.json"
    finish(planning_tower(load_seeing("gemma3"), notes, lambda: False))
    assert not notes.exists()


def test_where_nothing_can_be_measured_a_bound_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    loaded, notes = load_seeing("qwen3_vl"), tmp_path / "steps.json"
    monkeypatch.setattr(tower_plan, "_took", lambda tower, grid: 0)
    with caplog.at_level(logging.WARNING):
        finish(planning_tower(loaded, notes))
    assert "bounded, not measured" in caplog.text and not notes.exists()
    plan = eyes_of(loaded).plan
    assert plan.factors == STRUCTURAL
    for grid in HELD_OUT:
        assert plan.needs(pass_over(grid)) >= took(loaded, grid)


def test_a_model_for_text_has_no_tower_to_probe() -> None:
    assert list(planning_tower(load_tiny("llama"))) == []
