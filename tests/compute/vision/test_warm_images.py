"""Warm equals cold with images: what a prefix cache hit gives equals what a fresh prefill gives,
wherever the hit ends."""

from pathlib import Path

import pytest

from omlx_server.compute.kv.schemes.turboquant import TurboQuant
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.compute import cold_cache
from tests.compute.drive import Drive, sampling
from tests.compute.vision.prompts import (
    FAMILIES,
    LARGE,
    Told,
    answer,
    load_with_vision,
    picture,
    repainted,
    seeing,
    words,
)

LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=16, max_batched_tokens=128)
COUNT = 5


def story(name: str) -> Told:
    """Text, an image, text, an image, text."""
    first, second = picture(name, 1), picture(name, 2, LARGE)
    return Told(name).then(words(1, 7), first, words(2, 3), second, words(3, 9))


def ask(drive: Drive, name: str, told: Told, count: int = COUNT) -> list[int]:
    """The answer to a prompt, of which all that can be kept is."""
    everywhere = tuple(range(1, len(told.tokens)))
    drive.add(name, told.tokens, sampling(count), images=told.images, checkpoints_at=everywhere)
    drive.finish()
    return drive.answers[f"{name}/0"]


def forget_last(drive: Drive) -> bool:
    """Evict the last block of what is kept, or a checkpoint. False if nothing is left."""
    instance = drive.instance
    gone = instance.cache.eviction.make_room(1, 0)
    instance.drop_evicted(wholly=True)
    return bool(gone.nbytes)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_hit_may_end_before_inside_and_behind_an_image(name: str) -> None:
    check_every_boundary(seeing(name), story(name))


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "idefics3"])
def test_so_it_may_where_keys_and_values_are_in_few_bits(name: str) -> None:
    check_every_boundary(load_with_vision(name, TurboQuant.of_bits(4)), story(name))


def check_every_boundary(loaded: LoadedModel, told: Told) -> None:
    expected, ends = answer(loaded, told, COUNT), set[int]()
    drive = Drive(loaded, LIMITS, block_size=1)
    assert ask(drive, "cold", told) == expected
    for kept in reversed(range(len(told.tokens))):
        while len(drive.instance.cache.index) > kept and forget_last(drive):
            pass
        name = f"after {kept} tokens"
        assert ask(drive, name, told) == expected, f"warm is not cold {name}"
        ends.add(drive.admitted[name].cached)
    assert ends == set(range(len(told.tokens)))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_hit_from_the_cold_tier_may_end_anywhere_too(name: str, tmp_path: Path) -> None:
    loaded, size = seeing(name), 4
    shown = picture(name, 1), picture(name, 2, LARGE)
    told = Told(name).then(words(0, 13), shown[0], words(2, 5), shown[1], words(3, 9))
    expected, ends = answer(loaded, told, COUNT), set[int]()
    with cold_cache.instance(tmp_path, loaded, size=size, write_through=True) as drive:
        assert ask(drive, "cold", told) == expected
    for stop in range(len(told.tokens) // size * size, 15, -size):
        with cold_cache.instance(tmp_path, loaded, size=size) as drive:
            assert drive.cold is not None
            for entry in list(drive.cold.index.entries()):
                assert entry.record is not None
                if entry.record.stop > stop:
                    drive.cold.index.forget(entry.key)
            assert ask(drive, "warm", told) == expected, f"warm is not cold after {stop} tokens"
            ends.add(drive.admitted["warm"].cached)
    assert len(ends) > 3
    assert any(image.start < end < image.stop for image in told.images for end in ends)


@pytest.mark.parametrize("name", FAMILIES)
def test_two_images_that_differ_in_one_pixel_share_nothing_from_there_on(name: str) -> None:
    loaded, first = seeing(name), picture(name, 1)
    drive = Drive(loaded, LIMITS, block_size=1)
    before, behind = words(1, 7), words(2, 9)
    one = Told(name).then(before, first, behind)
    other = Told(name).then(before, repainted(first), behind)
    assert ask(drive, "one", one) == answer(loaded, one, COUNT)
    assert ask(drive, "other", other) == answer(loaded, other, COUNT)
    assert drive.admitted["other"].cached == len(before)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_about_two_images_runs_the_tower_twice(name: str) -> None:
    """And each of its six turns computes its new tokens only."""
    loaded = load_with_vision(name)
    assert loaded.vision is not None
    drive, told, known = Drive(loaded, LIMITS, block_size=4), Told(name).then(words(0, 5)), 0
    for turn in range(6):
        if turn in (0, 3):
            told = told.then(picture(name, turn))
        told = told.then(words(turn, 6))
        said = ask(drive, f"turn {turn}", told)
        assert said == answer(loaded, told, COUNT), turn
        assert drive.computed[f"turn {turn}"] == len(told.tokens) - 1 - known, turn
        told = told.then(said)
        known = len(told.tokens) - 1
    # The tower of the oracle is the same, and has run beside the vision.
    assert loaded.vision.runs == 2


@pytest.mark.parametrize("name", FAMILIES)
def test_features_that_went_are_computed_again_when_a_prompt_needs_them(name: str) -> None:
    loaded = load_with_vision(name)
    assert loaded.vision is not None
    told = story(name)
    drive = Drive(loaded, LIMITS, block_size=4)
    expected = answer(loaded, told, COUNT)
    for again in range(3):
        drive.instance.reset_cache()
        assert loaded.vision.nbytes == 0
        assert ask(drive, f"{again}", told) == expected
        assert loaded.vision.runs == 2 * (again + 1)
