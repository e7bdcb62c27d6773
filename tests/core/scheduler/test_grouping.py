"""Which chunks run in one forward, by example and for any chunks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.scheduler.limits import Grouping
from omlx_server.core.step import Chunk, Join, SequenceId

SAMPLING = SamplingParams(max_tokens=5)
GROUPING = Grouping()


def chunk(name: str, start: int, tokens: int, joins: int = 1) -> Chunk:
    ids = [SequenceId(RequestId(name), choice) for choice in range(max(joins, 1))]
    context = tuple(range(start + tokens + 1))
    rows = tuple(Join(id, context, len(context), SAMPLING) for id in ids[:joins])
    return Chunk(ids[0], start, context[start : start + tokens], rows)


def groups(grouping: Grouping, *chunks: Chunk) -> list[str]:
    return ["".join(c.prefill.request for c in group) for group in grouping.group(chunks)]


def test_last_chunks_of_one_shape_run_together() -> None:
    assert groups(GROUPING, *(chunk(name, 0, 20) for name in "abcd")) == ["abcd"]


@pytest.mark.parametrize(("longest", "expected"), [(30, ["ab"]), (38, ["a", "b"])])
def test_padding_is_bounded(longest: int, expected: list[str]) -> None:
    """Two of 30 for 20 + 30 tokens pad a fifth, two of 38 for 20 + 38 three tenths and more."""
    assert groups(GROUPING, chunk("a", 0, 20), chunk("b", 0, longest)) == expected


def test_so_is_the_length_and_how_far_they_are_apart() -> None:
    assert groups(GROUPING, chunk("a", 0, 256), chunk("b", 0, 256)) == ["ab"]
    assert groups(GROUPING, chunk("a", 0, 257), chunk("b", 0, 257)) == ["a", "b"]
    wider = Grouping(most_tokens=257)
    assert groups(wider, chunk("a", 0, 257), chunk("b", 0, 257)) == ["ab"]
    assert groups(GROUPING, chunk("a", 0, 20), chunk("b", 256, 20)) == ["ab"]
    assert groups(GROUPING, chunk("a", 0, 20), chunk("b", 257, 20)) == ["a", "b"]


def test_a_group_reaches_no_further_than_one_spread_altogether() -> None:
    chunks = [chunk("a", 0, 20), chunk("b", 200, 20), chunk("c", 400, 20)]
    assert groups(GROUPING, *chunks) == ["ab", "c"]


def test_what_does_not_end_its_prompt_or_ends_it_for_several_runs_alone() -> None:
    several = [chunk("a", 0, 20), chunk("b", 0, 20, joins=0), chunk("c", 0, 20, joins=2)]
    assert sorted(groups(GROUPING, *several)) == ["a", "b", "c"]


def test_a_chunk_of_nothing_runs_alone() -> None:
    """A prompt that came from the cache wholly has nothing to compute."""
    assert groups(GROUPING, chunk("a", 40, 0), chunk("b", 40, 0)) == ["a", "b"]


def test_caches_that_take_no_padding_take_equal_lengths_only() -> None:
    tight = Grouping(pads=False)
    assert groups(tight, chunk("a", 0, 20), chunk("b", 0, 20), chunk("c", 0, 21)) == ["ab", "c"]


def test_a_state_that_has_read_nothing_is_not_grouped_with_others() -> None:
    tight = Grouping(pads=False)
    assert groups(tight, chunk("a", 0, 20), chunk("b", 64, 20), chunk("c", 64, 20)) == ["a", "bc"]
    assert groups(GROUPING, chunk("a", 0, 20), chunk("b", 64, 20)) == ["ab"]


def test_a_model_that_cannot_be_batched_runs_one_by_one() -> None:
    alone = Grouping(batchable=False)
    assert groups(alone, chunk("a", 0, 20), chunk("b", 0, 20)) == ["a", "b"]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(0, 600), st.integers(0, 300), st.integers(0, 2)), max_size=8
    ),
    grouping=st.builds(Grouping, st.booleans(), st.booleans()),
)
def test_every_chunk_runs_once_and_in_a_group_that_is_worth_it(
    shapes: list[tuple[int, int, int]], grouping: Grouping
) -> None:
    chunks = [chunk(chr(97 + i), *shape) for i, shape in enumerate(shapes)]
    grouped = grouping.group(chunks)
    assert sorted(c.prefill for group in grouped for c in group) == [c.prefill for c in chunks]
    for group in grouped:
        lengths, starts = [len(c.tokens) for c in group], [c.start for c in group]
        if len(group) > 1:
            assert grouping.batchable
            assert all(len(c.joins) == 1 for c in group)
            assert max(starts) - min(starts) <= 256 and max(lengths) <= 256
            padding = len(lengths) * max(lengths) - sum(lengths)
            assert padding <= (0.3 if grouping.pads else 0) * sum(lengths)
