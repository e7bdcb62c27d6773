"""The block index by example: what is found, what takes whose place, what can't go."""

import pytest

from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey, root_key
from tests.core.places import place
from tests.core.texts import ROOT, SIZE, STATE, block, evict_block, store, tokens

OTHER = root_key("model", b"salt")


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
    assert index.insert(place(ROOT, tokens("abcdefgh")), SIZE) is None
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


def test_states_of_a_short_tail_move_to_what_covers_it(index: BlockIndex) -> None:
    [_, short] = store(index, "abcdef")
    state = index.add_checkpoint(place(ROOT, tokens("abcdef")), STATE, Worth.NEWEST)
    store(index, "abcdefgh")
    assert index.take_replaced() == [short]
    [checkpoint] = block(index, "abcdefgh").checkpoints.values()
    assert (checkpoint.id, checkpoint.position) == (state, 6)
    index.check_invariants()


def test_a_newer_end_supersedes_those_before_it_only(index: BlockIndex) -> None:
    store(index, "abcdefgh")
    store(index, "abcdXXXX")
    for text in ("abcdefg", "abcdX", "abc"):
        index.add_checkpoint(place(ROOT, tokens(text)), STATE, Worth.NEWEST)
    assert index.order.next_checkpoint(Worth.SUPERSEDED) is None  # none of them continues another
    index.add_checkpoint(place(ROOT, tokens("abcdef")), STATE, Worth.NEWEST)
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


def test_a_state_needs_a_block_that_reaches_it(index: BlockIndex) -> None:
    store(index, "abcd")
    assert index.add_checkpoint(place(ROOT, tokens("abcde")), STATE, Worth.SHARED) is None
    assert index.add_checkpoint(place(ROOT, tokens("abX")), STATE, Worth.SHARED) is None
    assert index.checkpoint_count == 0


def test_what_was_evicted_is_remembered(index: BlockIndex) -> None:
    store(index, "abcd")
    key = block(index, "abcd").key
    assert key in index and not index.was_evicted(key)
    evict_block(index)
    assert key not in index and index.was_evicted(key)


def test_clear_leaves_what_is_held(index: BlockIndex) -> None:
    store(index, "abcdefgh")
    store(index, "1234")
    held = block(index, "abcd")
    index.lease(held)
    assert len(index.clear()) == 2
    assert (len(index), index.nbytes) == (1, 10)


def test_what_leases_hold_is_counted_once_with_its_ancestors(index: BlockIndex) -> None:
    for text in ("abcdefghijkl", "abcdefghWXYZ", "other"):
        store(index, text)
    ends = [block(index, text) for text in ("abcdefghijkl", "abcdefghWXYZ")]
    assert index.leased_bytes() == 0
    for end in ends:
        assert end is not None
        index.lease(end)
    assert index.leased_bytes() == 4 * SIZE.nbytes
    assert ends[0] is not None and ends[1] is not None
    index.use(ends[0])
    assert index.leased_bytes() == 3 * SIZE.nbytes, "it is in use"
    index.release(ends[1])
    index.unuse(ends[0])
    assert index.leased_bytes() == 3 * SIZE.nbytes
    index.check_invariants()
