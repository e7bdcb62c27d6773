"""Images as tokens of a prompt: their ids, chunks around them, and what the cache makes of
them."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.core.images import (
    FIRST_ID,
    ImageSpan,
    images_within,
    position_shift,
    stop_at_image,
    token_ids,
)
from omlx_server.core.request import Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import Grouping, SchedulerLimits
from omlx_server.core.speculation.ngram import NgramLookup
from omlx_server.core.step import Chunk, Join, SequenceId
from tests.core.simulator import KV, Run

LIMITS = SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=8, max_batched_tokens=32)
# Text, an image of 11 tokens that moves text on by 4 positions, text, one of 20 by 20, text.
IMAGES = (ImageSpan(5, 11, b"one", 4), ImageSpan(20, 20, b"two", 20))
LENGTH = 60


def prompt(images: tuple[ImageSpan, ...] = IMAGES, length: int = LENGTH) -> tuple[int, ...]:
    tokens = [at % 5 for at in range(length)]
    for image in images:
        tokens[image.start : image.stop] = token_ids(image.digest, image.count)
    return tuple(tokens)


def request(name: str, images: tuple[ImageSpan, ...] = IMAGES) -> Request:
    params = SamplingParams(max_tokens=3)
    return Request(RequestId(name), prompt(images), params, images=images)


def chunks_of(run: Run, asked: Request) -> list[Chunk]:
    """All chunks that are computed for a request which is alone."""
    found: list[Chunk] = []
    execute = run.device.execute

    def noted(step):  # type: ignore[no-untyped-def]
        found.extend(step.chunks)
        return execute(step)

    run.device.execute = noted  # type: ignore[method-assign]
    run.scheduler.add(asked)
    run.finish()
    run.device.execute = execute  # type: ignore[method-assign]
    return found


@given(st.binary(max_size=64), st.integers(0, 700))
def test_ids_are_beyond_every_vocabulary_and_fit_signed_words(digest: bytes, count: int) -> None:
    ids = token_ids(digest, count)
    assert len(ids) == count
    assert all(FIRST_ID <= token < 1 << 31 for token in ids)
    assert token_ids(digest, count + 9)[:count] == ids, "each is of its place alone"


def test_images_that_differ_share_no_id() -> None:
    one, two = token_ids(b"one", 1000), token_ids(b"two", 1000)
    assert not set(one) & set(two)
    assert len(set(one)) == 1000


def test_positions_behind_a_image_are_shifted() -> None:
    assert [position_shift(IMAGES, at) for at in (0, 5, 15, 16, 20, 40, 46)] == [
        0,
        0,
        0,
        -7,
        -7,
        -7,
        -7,
    ]
    assert images_within(IMAGES, 0, 5) == () and images_within(IMAGES, 5, 6) == IMAGES[:1]
    assert images_within(IMAGES, 15, 21) == IMAGES and images_within(IMAGES, 40, 47) == ()


def test_chunks_know_their_images_and_where_they_stand() -> None:
    chunks = chunks_of(Run(LIMITS, KV), request("a"))
    assert [c.start for c in chunks] == list(range(0, 57, 8))
    assert [c.images for c in chunks] == [
        IMAGES[:1],
        IMAGES[:1],
        IMAGES[1:],
        IMAGES[1:],
        IMAGES[1:],
        *[()] * 3,
    ]
    assert [c.shift for c in chunks] == [0, 0, *[-7] * 6]
    assert [join.shift for c in chunks for join in c.joins] == [-7]


@pytest.mark.parametrize("first", range(1, 25))
def test_no_chunk_cuts_a_image_that_is_whole(first: int) -> None:
    whole = replace(IMAGES[0], start=first, whole=True), replace(IMAGES[1], whole=True)
    whole = (*whole[:1], replace(whole[1], start=first + 11)) if first > 8 else whole
    asked, run = request("a", whole), Run(LIMITS, KV)
    run.device.has_whole_images = True
    chunks = chunks_of(run, asked)
    assert sum((c.tokens for c in chunks), ()) == asked.tokens[:-1]
    for chunk, after in pairwise(chunks):
        assert chunk.stop == after.start
        assert all(not p.start < chunk.stop < p.stop for p in whole)


@given(st.integers(0, 60), st.integers(1, 60))
def test_a_chunk_that_cuts_nothing_has_tokens(start: int, count: int) -> None:
    whole = tuple(replace(image, whole=True) for image in IMAGES)
    stop = stop_at_image(whole, start, start + count)
    assert stop > start
    assert all(not p.start < stop < p.stop for p in whole) or any(
        p.start < start < p.stop for p in whole
    )


def test_a_image_that_is_known_is_not_computed_again_and_another_one_is() -> None:
    run = Run(LIMITS, KV)
    chunks_of(run, request("a"))
    assert sum(len(c.tokens) for c in chunks_of(run, request("b"))) < KV.block_size
    other = IMAGES[0], replace(IMAGES[1], digest=b"three")
    again = chunks_of(run, request("c", other))
    assert again[0].start == IMAGES[1].start // KV.block_size * KV.block_size


def test_chunks_with_images_and_behind_them_run_alone() -> None:
    def chunk(name: str, images: tuple[ImageSpan, ...] = (), shift: int = 0) -> Chunk:
        id = SequenceId(RequestId(name), 0)
        join = Join(id, (1,) * 9, 9, SamplingParams(max_tokens=1))
        return Chunk(id, 0, (1,) * 8, (join,), images=images, shift=shift)

    chunks = [chunk("a"), chunk("b"), chunk("c", IMAGES), chunk("d", shift=-7), chunk("e")]
    sizes = sorted(len(group) for group in Grouping().group(chunks))
    assert sizes[-1] <= 3 and sizes.count(1) >= 2


def test_no_image_is_drafted() -> None:
    known = [1, 2, 3, 4, *token_ids(b"one", 3), 9, 1, 2, 3]
    lookup = NgramLookup(known)
    assert lookup.draft(5) == (4,)
    lookup.take([4])
    assert lookup.draft(5) == ()


def test_a_prompt_does_not_end_with_a_image() -> None:
    with pytest.raises(ValueError, match="end with an image"):
        Request(RequestId("x"), token_ids(b"one", 2), SamplingParams(max_tokens=1))
