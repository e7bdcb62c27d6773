"""Which block goes first, by example: blocks and states in memory, and the heap of both tiers."""

from dataclasses import dataclass

import pytest

from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.eviction_order import EvictionOrder
from omlx_server.core.blocks.index import BlockIndex
from tests.core.places import place
from tests.core.texts import ROOT, STATE, block, evict_block, evict_state, store, tokens


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex(4)


# -- blocks ------------------------------------------------------------------------------


def test_leaves_go_first_the_least_recently_used_before_others(index: BlockIndex) -> None:
    [a, b] = store(index, "abcdefgh")
    [c] = store(index, "abcdWXYZ")
    [d] = store(index, "1234")
    index.touch(block(index, "abcdefgh"))
    assert [evict_block(index) for _ in range(5)] == [[c], [d], [b], [a], []]
    assert (index.nbytes, index.buffers, len(index)) == (0, 0, 0)


def test_a_short_tail_that_is_held_goes_first_of_all(index: BlockIndex) -> None:
    store(index, "1234")  # older than all that follows
    [_, short] = store(index, "abcdef")
    held = block(index, "abcdef")
    index.lease(held)
    store(index, "abcdefgh")
    assert index.take_replaced() == []
    index.release(held)
    assert evict_block(index) == [short]
    index.check_invariants()


def test_a_parent_takes_over_the_seconds_of_the_last_use(index: BlockIndex) -> None:
    store(index, "abcd")
    order, parent, child = index.order, block(index, "abcd"), place(ROOT, tokens("abcdefgh"))
    order.note_time(1.0)
    index.insert(child, STATE)
    order.note_time(5.0)
    assert order.idle_seconds(parent, 9.0) == 8.0
    evict_block(index)
    assert order.idle_seconds(parent, 9.0) == 4.0
    index.insert(child, STATE)
    evict_block(index)
    assert order.idle_seconds(parent, 9.0) == 0.0, "used since the time was noted"


def test_a_leased_block_keeps_all_before_it(index: BlockIndex) -> None:
    [_, b, c] = store(index, "abcdefghijkl")
    held = block(index, "abcdefgh")
    index.lease(held)
    assert [evict_block(index), evict_block(index)] == [[c], []]
    index.release(held)
    assert evict_block(index) == [b]


def test_a_lease_is_released_once_for_each_time_it_was_taken(index: BlockIndex) -> None:
    store(index, "abcd")
    held = block(index, "abcd")
    index.lease(held)
    index.lease(held)
    index.release(held)
    assert evict_block(index) == []
    index.release(held)
    with pytest.raises(ValueError, match="more often"):
        index.release(held)


def test_what_was_used_last_is_named_first_and_parents_before_their_children(
    index: BlockIndex,
) -> None:
    [a, b] = store(index, "abcdefgh")
    [c] = store(index, "1234")
    state = index.add_checkpoint(place(ROOT, tokens("abc")), STATE, Worth.LATTICE)
    assert [held.id for held in index.order.by_use()] == [c, a, state, b]
    index.touch(block(index, "abcdefgh"))
    assert [held.id for held in index.order.by_use()] == [a, state, b, c]


# -- states ------------------------------------------------------------------------------


def test_a_leased_state_keeps_its_block(index: BlockIndex) -> None:
    store(index, "abcd")
    index.add_checkpoint(place(ROOT, tokens("abc")), STATE, Worth.LATTICE)
    state = block(index, "abcd").checkpoints[3]
    index.lease(state)
    assert evict_block(index) == [] and evict_state(index) == []
    index.release(state)
    assert len(evict_block(index)) == 2
    assert index.checkpoint_bytes == 0


def test_states_go_by_worth_then_by_age(index: BlockIndex) -> None:
    store(index, "abcdefgh")
    worths = {
        "ab": Worth.SHARED,
        "abc": Worth.LATTICE,
        "abcd": Worth.NEWEST,
        "abcde": Worth.LATTICE,
        "abcdef": Worth.NEWEST,
    }
    ids = {
        text: index.add_checkpoint(place(ROOT, tokens(text)), STATE, worth)
        for text, worth in worths.items()
    }
    gone = [evict_state(index)[0] for _ in range(5)]
    assert gone == [ids[text] for text in ("abcd", "abc", "abcde", "ab", "abcdef")]


def test_a_state_that_is_wanted_again_is_fresh_again(index: BlockIndex) -> None:
    store(index, "abcdefgh")
    old = index.add_checkpoint(place(ROOT, tokens("ab")), STATE, Worth.LATTICE)
    newer = index.add_checkpoint(place(ROOT, tokens("abc")), STATE, Worth.LATTICE)
    assert index.add_checkpoint(place(ROOT, tokens("ab")), STATE, Worth.LATTICE) is None
    assert [evict_state(index), evict_state(index)] == [[newer], [old]]


def test_superseded_states_go_first_and_those_of_held_blocks_last(index: BlockIndex) -> None:
    [_, end] = store(index, "abcdefgh")
    index.lease(block(index, "abcd"))
    shared = index.add_checkpoint(place(ROOT, tokens("a")), STATE, Worth.SHARED)
    lattice = index.add_checkpoint(place(ROOT, tokens("abcd")), STATE, Worth.LATTICE)
    first, second, newest = (
        index.add_checkpoint(place(ROOT, tokens(text)), STATE, Worth.NEWEST)
        for text in ("ab", "abc", "abcdef")
    )
    gone = []
    while (held := index.order.next()) is not None:
        gone.append([each.id for each in index.evict(held)])
    assert gone == [[first], [second], [end, newest], [lattice], [shared]]


# -- the heap ----------------------------------------------------------------------------


@dataclass
class Stored:
    """A block of which nothing is known but its use."""

    used: int = 0


def test_many_touches_do_not_pile_up() -> None:
    blocks = {1: Stored(), 2: Stored()}
    order = EvictionOrder(blocks, lambda block: True)
    order.touch(2)
    for _ in range(10_000):
        order.touch(1)
    assert len(order._heap) < 2_000
    assert [order.next_block(), order.next_block()] == [blocks[2], blocks[1]]


def test_a_key_that_is_not_there_is_ignored() -> None:
    order = EvictionOrder(dict[int, Stored](), lambda block: True)
    order.touch(1)
    order.put_first(1)
    order.lost_child(1, Stored(9))
    assert order.next_block() is None
