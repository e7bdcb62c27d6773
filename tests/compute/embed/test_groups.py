"""Grouping of inputs: each once, bounded, alike in length."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.compute.embed.backbone_encoder import group_by_length

LENGTHS = st.lists(st.integers(1, 40), max_size=30)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(LENGTHS, st.integers(1, 100))
def test_each_input_is_in_one_group_and_groups_are_bounded(lengths: list[int], most: int) -> None:
    groups = group_by_length(lengths, most)
    assert sorted(index for indices in groups for index in indices) == list(range(len(lengths)))
    for indices in groups:
        members = [lengths[index] for index in indices]
        padded = len(members) * max(members)
        assert len(members) == 1 or padded <= most
        assert padded - sum(members) <= padded * 0.1


def test_like_lengths_share_a_group_as_far_as_it_goes() -> None:
    assert group_by_length([5, 5, 5, 5, 5], 10) == [(0, 1), (2, 3), (4,)]
    assert group_by_length([20, 10, 19, 10], 100) == [(1, 3), (2, 0)]
    assert group_by_length([], 10) == []
