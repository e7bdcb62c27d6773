"""Bytes of caches by class, as arithmetic. Held against real caches in tests/compute."""

from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.memory.kv import (
    Keeps,
    LayerKv,
    attended_tokens,
    bytes_behind_rings,
    cache_bytes,
    grows,
    held_bytes,
    largest_layer,
    layer_bytes,
    longest_in_group,
    longest_of_groups,
    most_of_largest_layer,
    places,
)
from tests.core.memory.shapes import LAYERS

FULL, RING, STATE = LAYERS


def test_growing_caches_have_room_in_steps_of_256() -> None:
    assert [places(n) for n in (0, 1, 256, 257)] == [0, 256, 256, 512]
    assert layer_bytes(FULL, 257) == 512 * 4096


def test_a_ring_holds_its_window_and_the_chunk_that_was_written() -> None:
    assert layer_bytes(RING, 100, 100) == 100 * 4096
    assert layer_bytes(RING, 5000, 256) == (512 + 255) * 4096
    assert layer_bytes(RING, 5000) == 512 * 4096


def test_a_state_is_as_large_whatever_was_read() -> None:
    assert layer_bytes(STATE, 1) == layer_bytes(STATE, 9999) == 70_000


def test_all_layers_count_as_often_as_they_are_there() -> None:
    one = 3 * 512 * 4096 + 5 * 512 * 4096 + 2 * 70_000
    assert cache_bytes(LAYERS, 2, 512) == 2 * one


def test_the_largest_layer() -> None:
    assert largest_layer(LAYERS, 4096) == 4096 * 4096
    assert largest_layer((), 4096) == 0


def test_a_chunk_stands_behind_the_window_of_every_ring() -> None:
    whole = cache_bytes(LAYERS, 1, 5000, 256)
    assert bytes_behind_rings(LAYERS, 256) == whole - cache_bytes(LAYERS, 1, 5000, 1)
    assert bytes_behind_rings((FULL, STATE), 256) == bytes_behind_rings(LAYERS, 1) == 0


def test_a_layer_whose_buffers_end_anywhere() -> None:
    assert most_of_largest_layer(LAYERS, 4096) == (4096 + 256) * 4096
    assert most_of_largest_layer((RING,), 4096) == 512 * 4096
    assert most_of_largest_layer((STATE,), 4096) == 70_000


@settings(derandomize=True, max_examples=200, deadline=None)
@given(tokens=st.integers(1, 10_000), chunk=st.integers(1, 576), rows=st.integers(1, 16))
def test_what_is_held_is_no_less_than_what_was_filled(tokens: int, chunk: int, rows: int) -> None:
    """And by no more than what buffers grow by."""
    filled = cache_bytes(LAYERS, rows, tokens, chunk)
    assert filled <= held_bytes(LAYERS, [tokens] * rows, chunk) <= filled + rows * 8 * 256 * 4096


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    tokens=st.integers(0, 10_000),
    more=st.integers(0, 1000),
    rows=st.integers(1, 16),
    chunk=st.integers(1, 512),
)
def test_more_of_anything_is_never_less(tokens: int, more: int, rows: int, chunk: int) -> None:
    base = cache_bytes(LAYERS, rows, tokens, chunk)
    assert base >= 0
    assert cache_bytes(LAYERS, rows, tokens + more, chunk) >= base
    assert cache_bytes(LAYERS, rows + 1, tokens, chunk) >= base


@settings(derandomize=True, max_examples=200, deadline=None)
@given(context=st.integers(0, 5000), tokens=st.integers(1, 600))
def test_buffers_grow_when_the_room_is_used_up(context: int, tokens: int) -> None:
    assert grows(context, tokens) == (places(context + tokens) > places(context))


def test_layers_are_values() -> None:
    assert LayerKv(Keeps.GROWING, 8) == LayerKv(Keeps.GROWING, 8, 1, 0)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=9), st.lists(st.integers(1, 5000)))
def test_a_decode_sees_each_row_with_its_padding(rows: list[int], leaving: list[int]) -> None:
    for padded in (LayerKv(Keeps.PADDED, 4096), LayerKv(Keeps.GROWING, 4096, reads_padding=True)):
        assert attended_tokens([FULL, padded], rows, leaving) == max(rows + leaving)
    own = attended_tokens([FULL, RING, STATE], rows, leaving)
    assert sum(rows) / len(rows) <= own <= max(rows)
    assert own * len(rows) < sum(map(longest_in_group, rows)) + len(rows)
    assert sum(longest_of_groups(rows)) >= sum(rows)


def test_no_row_sees_nothing() -> None:
    assert attended_tokens([LayerKv(Keeps.PADDED, 4096)], []) == 0
