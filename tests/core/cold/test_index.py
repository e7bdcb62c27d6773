"""The index of the cold tier by example, and by random operations against a naive eviction."""

import pytest

from omlx_server.core.blocks.keys import namespace_id, root_key
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cold.index import ColdEntry, ColdIndex
from tests.core.cold.chains import Walk, check_cold_index, record

SIZE = 10
STEPS = 20_000


A = record(None, 1, 1)
B = record(A, 2, 2)
C = record(B, 3, 3)
OTHER = record(None, 9, 9)
NAMES = {A.key: "A", B.key: "B", C.key: "C", OTHER.key: "OTHER"}


def add(index: ColdIndex, *records: Record, nbytes: int = SIZE) -> str | None:
    """Add them; the names of those that went, in order. None when the last one was refused."""
    names: list[str] = []
    for each in records:
        gone = index.add(each, nbytes)
        check_cold_index(index)
        assert index.nbytes <= index.budget
        if gone is None:
            return None
        names += named(gone)
    return " ".join(names)


def named(entries: list[ColdEntry]) -> list[str]:
    return [NAMES[entry.key] for entry in entries]


def shrink(index: ColdIndex) -> str:
    """What goes, in order, when all that can go has to."""
    gone = named(index.shrink_to(0))
    check_cold_index(index)
    return " ".join(gone)


def unknown(record: Record, nbytes: int = SIZE) -> ColdEntry:
    """What a scan knows of it."""
    return ColdEntry(record.key, namespace_id(record.namespace), nbytes)


def full(*records: Record) -> ColdIndex:
    """An index with room for these and no more."""
    index = ColdIndex(SIZE * len(records))
    assert add(index, *records) == ""
    return index


# -- what goes first ---------------------------------------------------------------------


def test_the_least_recently_used_leaf_goes_first() -> None:
    index = full(A, B, OTHER)
    assert add(index, C) == "OTHER"
    assert add(index, OTHER) == "C"


def test_a_touch_makes_an_entry_the_newest() -> None:
    index = full(OTHER, A)
    index.touch(OTHER.key)
    assert shrink(index) == "A OTHER"


def test_a_parent_goes_after_its_children_and_inherits_their_age() -> None:
    index = full(A, B, OTHER, C)
    assert shrink(index) == "OTHER C B A"


def test_a_parent_is_as_young_as_the_child_that_it_has_lost() -> None:
    index = full(A, OTHER, B)
    index.forget(B.key)
    assert shrink(index) == "OTHER A"


def test_a_parent_that_was_used_last_still_goes_after_its_child() -> None:
    index = full(A, B)
    index.touch(A.key)
    assert shrink(index) == "B A"


def test_a_child_may_come_before_its_parent() -> None:
    index = full(C, B, A)
    assert shrink(index) == "C B A"


def test_an_entry_does_not_push_out_its_own_parent() -> None:
    index = full(A, B)
    assert add(index, C) is None
    assert shrink(index) == "B A"
    index = full(A, B, OTHER)
    index.touch(OTHER.key)
    assert add(index, C) == "OTHER"


def test_a_state_keeps_what_is_before_its_block() -> None:
    index = full(A, record(A, 2, part=RecordKind.CHECKPOINT))
    assert index.shrink_to(SIZE)[0].key != A.key


def test_what_belongs_to_a_model_that_is_gone_goes_first_and_leaves_first() -> None:
    index = full(OTHER, A, B)
    gone = Record("gone", root_key("gone", b""), 0, (1,))
    after = Record("gone", gone.key, 1, (2,))
    index.budget += 2 * SIZE
    add(index, gone, after)
    index.make_first_to_go(namespace_id("gone"))
    assert [entry.key for entry in index.shrink_to(3 * SIZE)] == [after.key, gone.key]
    assert shrink(index) == "OTHER B A"


# -- the budget --------------------------------------------------------------------------


def test_what_fits_exactly_pushes_nothing_out() -> None:
    index = ColdIndex(2 * SIZE)
    assert (add(index, A), add(index, OTHER), index.nbytes) == ("", "", 2 * SIZE)


def test_as_many_go_as_are_needed() -> None:
    index = full(A, B, OTHER)
    assert add(index, C, nbytes=2 * SIZE) is None  # its parents stay, OTHER is not enough
    big = record(None, 7)
    assert named(index.add(big, 2 * SIZE) or []) == ["B", "A"]
    assert {entry.key for entry in index.entries()} == {OTHER.key, big.key}


def test_what_is_larger_than_the_budget_is_refused_and_nothing_is_lost() -> None:
    index = full(A, B)
    assert add(index, OTHER, nbytes=2 * SIZE + 1) is None
    assert (len(index), index.nbytes, OTHER.key in index) == (2, 2 * SIZE, False)
    assert shrink(index) == "B A"


def test_when_the_others_are_held_it_is_refused_and_nothing_is_lost() -> None:
    index = full(A, OTHER)
    index.lease(A.key)
    assert add(index, record(None, 7), nbytes=2 * SIZE) is None
    assert (A.key in index, OTHER.key in index) == (True, True)
    index.release(A.key)
    assert shrink(index) == "A OTHER"


def test_an_empty_budget_takes_nothing() -> None:
    index = ColdIndex(0)
    assert (add(index, A), len(index)) == (None, 0)


def test_the_same_again_is_nothing_new() -> None:
    index = full(A)
    assert (add(index, A, nbytes=1), index.nbytes) == ("", SIZE)


def test_a_size_was_an_estimate_until_it_was_written() -> None:
    index = full(A, OTHER)
    index.resize(OTHER.key, SIZE + 1)
    index.resize(C.key, 1000)  # gone meanwhile
    assert index.nbytes == 2 * SIZE + 1
    assert named(index.shrink_to(index.budget)) == ["A"]
    check_cold_index(index)


# -- leases ------------------------------------------------------------------------------


def test_what_is_leased_stays_and_so_does_what_is_before_it() -> None:
    index = full(A, B, OTHER)
    index.lease(B.key)
    assert shrink(index) == "OTHER"
    index.lease(B.key)
    index.release(B.key)
    assert shrink(index) == ""
    index.release(B.key)
    assert shrink(index) == "B A"


def test_a_leased_entry_may_be_forgotten() -> None:
    index = full(A, B)
    index.lease(A.key)
    index.forget(A.key)
    check_cold_index(index)
    index.release(A.key)
    assert (len(index), index.nbytes) == (1, SIZE)
    index.forget(A.key)
    assert shrink(index) == "B"


def test_take_gives_what_nobody_holds() -> None:
    index = full(A, OTHER)
    index.lease(A.key)
    assert (index.take(A.key), index.take(C.key)) == ([], [])
    assert named(index.take(OTHER.key)) == ["OTHER"]
    index.release(A.key)
    assert (named(index.take(A.key)), len(index), index.nbytes) == (["A"], 0, 0)
    check_cold_index(index)


# -- a scan ------------------------------------------------------------------------------


def test_what_a_scan_finds_goes_in_the_order_of_its_last_use() -> None:
    index = ColdIndex(100)
    index.load(map(unknown, (OTHER, A, B)))
    assert index.nbytes == 3 * SIZE
    assert shrink(index) == "OTHER A B"  # who belongs to whom is not known yet


def test_what_is_learned_of_a_block_keeps_its_parent() -> None:
    index = ColdIndex(100)
    index.load(map(unknown, (A, B, OTHER)))
    assert not list(index.children(A.key))
    for _ in range(2):
        index.learn(B)
        check_cold_index(index)
    assert list(index.children(A.key)) == [B]
    assert shrink(index) == "B A OTHER"
    index.learn(B)  # too late
    assert B.key not in index
    check_cold_index(index)


def test_a_scan_does_not_undo_what_is_known() -> None:
    index = full(A)
    index.load([unknown(A, 99)])
    entry = index.entry(A.key)
    assert entry is not None and (entry.record, entry.nbytes) == (A, SIZE)


def test_the_children_of_a_key_need_not_have_it() -> None:
    index = ColdIndex(100)
    add(index, B, C)
    assert list(index.children(A.key)) == [B]
    index.forget(B.key)
    assert not list(index.children(A.key)) and list(index.children(B.key)) == [C]


def test_books_that_contradict_themselves_are_noticed() -> None:
    for spoil in ("nbytes", "leases", "parent"):
        index = full(A, B)
        entry = index.entry(B.key)
        assert entry is not None
        if spoil == "nbytes":
            index.nbytes += 1
        elif spoil == "leases":
            entry.leases = -1
        else:
            entry.record = C
        with pytest.raises(AssertionError):
            check_cold_index(index)


@pytest.mark.parametrize("seed", range(4))
def test_the_index_evicts_like_the_naive_one(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS // 4):
        walk.step()
    assert min(walk.evicted, walk.refused) > 200, "a walk that hardly goes anywhere"
