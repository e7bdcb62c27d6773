"""The short forms of the slow campaigns."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import UNPROBED
from tests.campaigns import (
    architectures,
    dispatches,
    drafts,
    hostile,
    images,
    kill,
    models,
    overload,
    pressure,
    schemas,
    several,
    soak,
)
from tests.campaigns.alone import forking
from tests.sweeps import wide


def test_a_server_that_is_killed_while_it_writes_answers_rightly_afterwards(
    tiny_models: Path, tmp_path: Path
) -> None:
    outcome = kill.campaign("org/tiny", [f"models.dirs={tiny_models}"], tmp_path, rounds=2)
    # 4 are of what was asked in the round before; the others, while it was about to be killed.
    assert outcome.answers > 4 and outcome.cached > 0
    assert (outcome.wrong, outcome.failed_starts) == (0, 0)


def test_answers_to_random_schemas_are_valid(tiny_models: Path, tmp_path: Path) -> None:
    outcome = schemas.campaign("org/tiny", [f"models.dirs={tiny_models}", UNPROBED], tmp_path, 16)
    assert not outcome.wrong and not outcome.refused, str(outcome)
    assert outcome.finished > 8


def test_answers_are_the_same_with_drafts(tiny_models: Path, tmp_path: Path) -> None:
    drafter = models.drafter(tmp_path)
    sets = [f"models.dirs={tiny_models}", f"speculation.draft_model={drafter}"]
    outcome = drafts.campaign("org/tiny", sets, tmp_path, 24)
    assert outcome.is_right, str(outcome)
    assert outcome.same + outcome.ties == 24


def by_itself(campaign: Callable[..., Any], *arguments: object) -> Any:
    """What a campaign gives in a process of its own: what other tests have left in this one would
    be on no account."""
    with ProcessPoolExecutor(1, forking()) as alone:
        return alone.submit(campaign, *arguments).result()


def test_a_limit_that_fits_half_the_load_is_held_and_nobody_is_lost() -> None:
    load = replace(soak.TINY, seconds=2.5)
    outcome = by_itself(soak.campaign, soak.tiny, load)
    assert outcome.is_right, f"{outcome} {outcome.wrong[:2]} {outcome.lost[:2]}"
    assert outcome.reliefs["pause"] and outcome.reliefs["blocks"]


@pytest.mark.parametrize("grouped", [False, *wide([True])], ids=str)
def test_a_program_that_eats_the_memory_costs_nobody_an_answer(grouped: bool) -> None:
    if grouped and not pressure.has_groups():
        pytest.skip("memory groups can't be made here")
    outcome = by_itself(partial(pressure.campaign, grouped=grouped), 120 << 20)
    assert outcome.is_right, f"{outcome} {outcome.work.wrong[:2]} {outcome.work.lost[:2]}"


def test_conversations_go_on_after_a_restart_and_the_limit_is_held_at_each_step(
    tmp_path: Path,
) -> None:
    load = replace(soak.RESTARTED, seconds=2.0, clients=4, longest=1000, room=8_000_000)
    load = replace(load, cold=tmp_path)
    outcome = by_itself(soak.campaign, soak.windowed, load)
    assert outcome.is_right, f"{outcome} {outcome.wrong[:2]} {outcome.lost[:2]}"
    assert outcome.cached > 0.9 * outcome.common


def test_three_models_share_the_memory_of_two(tmp_path: Path) -> None:
    # With this seed nearly each question is for another model than the one before.
    campaign = partial(several.campaign, clients=3, seed=145)
    outcome = by_itself(campaign, several.tiny(tmp_path), 10)
    assert outcome.is_right, f"{outcome} {outcome.wrong[:2]} {outcome.lost[:2]}"
    assert outcome.answers == 10
    # Six are the first of each, and those by themselves in the end.
    assert sum(outcome.loads.values()) > 6, "nobody ever had to leave"


@pytest.mark.parametrize("name", ["deepseek_v32", *wide(["plamo3", "recurrent_gemma"])])
def test_architectures_that_need_more_than_their_caches_answer_as_mlx_lm(
    tmp_path: Path, name: str
) -> None:
    """deepseek_v32 keeps the padded batch; mlx-lm itself can't load olmo."""
    rows = {row.name: row for row in architectures.campaign((name, "olmo"), tmp_path)}
    assert all(row.is_right for row in rows.values()), rows
    assert [row.answers for row in rows.values()] == [30, 0]
    assert rows[name].reused > 1000, rows


def test_a_client_that_does_harm_harms_nobody_else(tiny_models: Path, tmp_path: Path) -> None:
    sets = [f"models.dirs={tiny_models}", UNPROBED, "cache.hot_cache_only=true"]
    sets, seeing = models.beside_vision(sets, tmp_path / "seeing")
    outcome = hostile.campaign("org/tiny", sets, tmp_path, hostile.TINY, seeing=seeing)
    assert outcome.is_right, f"{outcome} {outcome.failed[:3]} {outcome.wrong[:3]} {outcome.held}"
    assert outcome.statuses[400] > 12


def test_an_overload_leaves_nobody_without_an_answer_and_nothing_behind(
    tiny_models: Path, tmp_path: Path
) -> None:
    load = replace(overload.TINY, seconds=4.0)
    outcome = overload.campaign("org/tiny", [f"models.dirs={tiny_models}"], tmp_path, load)
    assert outcome.is_right, f"{outcome} {outcome.problems[:5]}"
    assert len(outcome.seen.answered) > 20 and outcome.seen.left > 0


def test_wrong_images_are_refused_and_right_ones_are_read_once(tmp_path: Path) -> None:
    model, sets = models.vision(tmp_path / "models")
    outcome = images.campaign(model, [*sets, UNPROBED], tmp_path, every=8)
    assert outcome.is_right, f"{outcome} {outcome.problems[:5]}"
    assert outcome.statuses[400] > 10


def test_parts_of_deep_chunks_take_time_and_are_predicted() -> None:
    outcomes = dispatches.campaign(depths=(500, 4000), size={}, runs=1)
    assert all(deep.longest > 0 and deep.predicted > 0 for deep in outcomes)
