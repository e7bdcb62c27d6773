"""The block index by example: what is found, what goes first, what can't go."""

import pytest

from omlx_server.core.block import Block, PayloadId, Size, Worth
from omlx_server.core.blocks import BlockIndex
from omlx_server.core.keys import BlockKey, root_key

ROOT = root_key("model", b"")
OTHER = root_key("model", b"salt")
SIZE = Size(10, 1)
STATE = Size(100, 2)


def tokens(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def store(index: BlockIndex, text: str, root: BlockKey = ROOT) -> list[PayloadId]:
    """Insert all blocks of a sequence; the ids of those that were new."""
    stops = [*range(4, len(text), 4), len(text)]
    ids = [index.insert(root, tokens(text)[:stop], SIZE) for stop in stops]
    index.check_invariants()
    return [id for id in ids if id is not None]


def block(index: BlockIndex, text: str) -> Block:
    found = index.find(ROOT, tokens(text))
    assert found is not None
    return found


def depth(index: BlockIndex, text: str, root: BlockKey = ROOT) -> int:
    return index.match(root, tokens(text)).depth


@pytest.fixture
def index() -> BlockIndex:
    return BlockIndex(4)


def test_a_match_is_token_granular(index: BlockIndex) -> None:
    store(index, "abcdefghij")
    found = {text: depth(index, text) for text in ("abcdefghijk", "abcdefgX", "abX", "X", "")}
    assert found == {"abcdefghijk": 10, "abcdefgX": 7, "abX": 2, "X": 0, "": 0}


def test_the_child_that_shares_most_is_used(index: BlockIndex) -> None:
    for text in ("abcdWXYZ", "abcdWXcc", "abcdWaaa"):
        store(index, text)
    match = index.match(ROOT, tokens("abcdWXcd"))
    assert match.partial is not None
    assert (match.partial.tokens, match.shared) == (tokens("WXcc"), 3)


def test_roots_share_nothing(index: BlockIndex) -> None:
    store(index, "abcdefgh")
    assert depth(index, "abcdefgh", OTHER) == 0
    assert len(store(index, "abcdefgh", OTHER)) == 2


def test_a_block_without_its_parents_is_not_taken(index: BlockIndex) -> None:
    assert index.insert(ROOT, tokens("abcdefgh"), SIZE) is None
    assert (len(index), index.nbytes) == (0, 0)


def test_a_short_tail_goes_once_a_longer_one_covers_it(index: BlockIndex) -> None:
    [_, short] = store(index, "abcdef")
    [longer] = store(index, "abcdefg")
    assert index.take_replaced() == [short]
    assert store(index, "abcdef") == []  # covered: not wanted
    [full] = store(index, "abcdefgh")
    assert index.take_replaced() == [longer] and full
    assert depth(index, "abcdefgh") == 8
    assert (len(index), index.take_replaced()) == (2, [])


def test_a_short_tail_that_is_held_goes_first_of_all(index: BlockIndex) -> None:
    store(index, "1234")  # older than all that follows
    [_, short] = store(index, "abcdef")
    held = block(index, "abcdef")
    index.lease(held)
    store(index, "abcdefgh")
    assert index.take_replaced() == []
    index.release(held)
    assert index.evict_block() == [short]
    index.check_invariants()


def test_states_of_a_short_tail_move_to_what_covers_it(index: BlockIndex) -> None:
    [_, short] = store(index, "abcdef")
    state = index.add_checkpoint(ROOT, tokens("abcdef"), STATE, Worth.NEWEST)
    store(index, "abcdefgh")
    assert index.take_replaced() == [short]
    [checkpoint] = block(index, "abcdefgh").checkpoints.values()
    assert (checkpoint.id, checkpoint.position) == (state, 6)
    index.check_invariants()


def test_leaves_go_first_the_least_recently_used_before_others(index: BlockIndex) -> None:
    [a, b] = store(index, "abcdefgh")
    [c] = store(index, "abcdWXYZ")
    [d] = store(index, "1234")
    index.touch(block(index, "abcdefgh"))
    assert [index.evict_block() for _ in range(5)] == [[c], [d], [b], [a], []]
    assert (index.nbytes, index.buffers, len(index)) == (0, 0, 0)


def test_a_leased_block_keeps_all_before_it(index: BlockIndex) -> None:
    [_, b, c] = store(index, "abcdefghijkl")
    held = block(index, "abcdefgh")
    index.lease(held)
    assert [index.evict_block(), index.evict_block()] == [[c], []]
    index.release(held)
    assert index.evict_block() == [b]


def test_a_lease_is_released_once_for_each_time_it_was_taken(index: BlockIndex) -> None:
    store(index, "abcd")
    held = block(index, "abcd")
    index.lease(held)
    index.lease(held)
    index.release(held)
    assert index.evict_block() == []
    index.release(held)
    with pytest.raises(ValueError, match="more often"):
        index.release(held)


def test_a_leased_state_keeps_its_block(index: BlockIndex) -> None:
    store(index, "abcd")
    index.add_checkpoint(ROOT, tokens("abc"), STATE, Worth.LATTICE)
    state = block(index, "abcd").checkpoints[3]
    index.lease(state)
    assert index.evict_block() == [] and index.evict_checkpoint() == []
    index.release(state)
    assert len(index.evict_block()) == 2
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
        text: index.add_checkpoint(ROOT, tokens(text), STATE, worth)
        for text, worth in worths.items()
    }
    gone = [index.evict_checkpoint()[0] for _ in range(5)]
    assert gone == [ids[text] for text in ("abcd", "abc", "abcde", "ab", "abcdef")]


def test_a_newer_end_supersedes_those_before_it_only(index: BlockIndex) -> None:
    store(index, "abcdefgh")
    store(index, "abcdXXXX")
    for text in ("abcdefg", "abcdX", "abc"):
        index.add_checkpoint(ROOT, tokens(text), STATE, Worth.NEWEST)
    assert not index.has_superseded  # none of them continues another
    index.add_checkpoint(ROOT, tokens("abcdef"), STATE, Worth.NEWEST)
    worths = {
        position: checkpoint.worth
        for text in ("abcd", "abcdefgh", "abcdXXXX")
        for position, checkpoint in block(index, text).checkpoints.items()
    }
    assert worths == {
        3: Worth.SUPERSEDED,
        5: Worth.NEWEST,
        6: Worth.NEWEST,
        7: Worth.NEWEST,
    }


def test_a_state_that_is_wanted_again_is_fresh_again(index: BlockIndex) -> None:
    store(index, "abcdefgh")
    old = index.add_checkpoint(ROOT, tokens("ab"), STATE, Worth.LATTICE)
    newer = index.add_checkpoint(ROOT, tokens("abc"), STATE, Worth.LATTICE)
    assert index.add_checkpoint(ROOT, tokens("ab"), STATE, Worth.LATTICE) is None
    assert [index.evict_checkpoint(), index.evict_checkpoint()] == [[newer], [old]]


def test_a_state_needs_a_block_that_reaches_it(index: BlockIndex) -> None:
    store(index, "abcd")
    assert index.add_checkpoint(ROOT, tokens("abcde"), STATE, Worth.SHARED) is None
    assert index.add_checkpoint(ROOT, tokens("abX"), STATE, Worth.SHARED) is None
    assert index.checkpoint_count == 0


def test_what_was_evicted_is_remembered(index: BlockIndex) -> None:
    store(index, "abcd")
    key = block(index, "abcd").key
    assert key in index and not index.was_evicted(key)
    index.evict_block()
    assert key not in index and index.was_evicted(key)


def test_clear_leaves_what_is_held(index: BlockIndex) -> None:
    store(index, "abcdefgh")
    store(index, "1234")
    held = block(index, "abcd")
    index.lease(held)
    assert len(index.clear()) == 2
    assert (len(index), index.nbytes) == (1, 10)
