"""Positions on three axes are those of the reference, however a prompt is cut."""

import numpy as np
import pytest

from omlx_server.compute.vision.positions import ImagePlace, axis_positions
from tests.compute.vision.recorded import arrays
from tests.compute.vision.tiny import GRIDS, START_ID

THREE_AXES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen2_5_vl", "qwen2_vl")


def places_of(name: str, number: int) -> list[ImagePlace]:
    ids = arrays(name)[f"ids_{number}"].tolist()
    starts = [place + 1 for place, id in enumerate(ids) if id == START_ID]
    return [
        ImagePlace.of(start, (1, *size), 2)
        for start, size in zip(starts, GRIDS[number], strict=True)
    ]


@pytest.mark.parametrize("name", THREE_AXES)
@pytest.mark.parametrize("number", range(len(GRIDS)))
def test_positions_are_those_of_the_reference(name: str, number: int) -> None:
    found, places = arrays(name), places_of(name, number)
    expected = found[f"positions_{number}"]
    positions = axis_positions(0, expected.shape[1], places)
    assert positions.dtype == np.int32 and np.array_equal(positions, expected)
    assert sum(place.delta for place in places) == found[f"delta_{number}"]


def test_the_positions_of_a_chunk_are_a_part_of_those_of_the_prompt() -> None:
    whole = arrays("qwen3_vl")["positions_1"]
    length, places = whole.shape[1], places_of("qwen3_vl", 1)
    for start in range(length):
        for stop in range(start, length + 1):
            assert np.array_equal(axis_positions(start, stop, places), whole[:, start:stop])


def test_images_to_come_make_no_difference() -> None:
    places = places_of("qwen3_vl", 1)
    stop = places[1].start
    assert np.array_equal(axis_positions(0, stop, places), axis_positions(0, stop, places[:1]))


def test_text_behind_images_goes_on_with_the_delta() -> None:
    places = [ImagePlace(3, 2, 5), ImagePlace(20, 4, 1)]
    behind = axis_positions(30, 33, places)
    delta = sum(place.delta for place in places)
    assert behind.tolist() == [[30 + delta + n for n in range(3)]] * 3


def test_text_alone_is_counted() -> None:
    assert axis_positions(5, 8, []).tolist() == [[5, 6, 7]] * 3
