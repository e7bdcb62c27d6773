"""Bad images are refused with one clear sentence, at once, and without much memory."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.errors import BadRequest
from omlx_server.images.decode import decode, inspect
from tests.images.bad_images import bad_images, bombs
from tests.images.files import FORMATS, animated, progressive, small
from tests.images.memory import measured

BAD = bad_images()
# For a second by the clock, on machines that do other things as well.
MOST_SECONDS = 1.0
MOST_BYTES = 32_000_000


def test_there_are_more_than_sixty() -> None:
    assert len({data for _, data, _ in BAD}) >= 60


@pytest.mark.parametrize(("data", "why"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_it_is_refused_with_one_clear_sentence(data: bytes, why: str) -> None:
    started = time.process_time()
    with pytest.raises(BadRequest) as caught:
        decode(inspect(data))
    assert time.process_time() - started < MOST_SECONDS
    message = caught.value.message
    assert why in message
    assert message.startswith(("the image ", "the PNG ", "the JPEG ", "the GIF ", "the WebP "))
    assert "\n" not in message and len(message) < 120


@pytest.mark.parametrize("bomb", bombs(), ids=lambda bomb: bomb[0])
def test_a_bomb_beside_the_pixels_is_never_looked_at(bomb: tuple[str, bytes]) -> None:
    started = time.process_time()
    header = inspect(bomb[1])
    assert decode(header).width in (4, 16)
    assert time.process_time() - started < MOST_SECONDS
    if "behind its rows" not in bomb[0]:
        assert len(header.data) < 2_000


def test_memory_stays_flat() -> None:
    bad, good = measured()
    assert bad < MOST_BYTES < good


@pytest.mark.parametrize("kind", FORMATS)
def test_it_is_refused_wherever_it_is_cut_off(kind: str) -> None:
    data = small(kind)
    whole = len(data) - (1 if kind == "GIF" else 0)
    for end in range(whole):
        with pytest.raises(BadRequest):
            decode(inspect(data[:end]))


GOOD = [small(kind) for kind in FORMATS]
GOOD += [animated("GIF", 3), animated("WEBP", 3), progressive(12)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_leaves_a_image(data: st.DataObject) -> None:
    image = bytearray(data.draw(st.sampled_from(GOOD)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(image) - 1))
        match data.draw(st.sampled_from(["set", "drop", "repeat"])):
            case "set":
                image[at] = data.draw(st.integers(0, 255))
            case "drop":
                del image[at : at + data.draw(st.integers(1, 20))]
            case _:
                image[at:at] = image[at : at + data.draw(st.integers(1, 20))]
    try:
        header = inspect(bytes(image))
        if header.pixels > 1_000_000:  # takes long, and is within the bounds
            return
        result = decode(header)
    except BadRequest as error:
        assert error.message.startswith("the ")
        return
    assert result.pixels.dtype == np.uint8
    assert result.pixels.size == header.pixels * 3


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["", "PNG", "JPEG", "GIF", "WEBP"]), st.binary(max_size=200))
def test_any_bytes_are_refused(kind: str, data: bytes) -> None:
    start = small(kind)[:12] if kind else b""
    with pytest.raises(BadRequest):
        decode(inspect(start + data))
