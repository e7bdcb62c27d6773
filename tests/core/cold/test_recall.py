"""What is read from the cold tier for a prompt, by example."""

import pytest

from omlx_server.core.blocks.block import CacheLayout
from omlx_server.core.blocks.keys import BlockKey, chain, namespace_id, root_key
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cold.index import ColdEntry, ColdIndex
from omlx_server.core.cold.recall import Rates, RecallPrompt, candidates, recall
from omlx_server.core.request import Miss
from omlx_server.core.scheduler.watchdog import LONGEST_READ_SECONDS
from tests.core.simulator import HYBRID, KV, RECURRENT, WINDOWED

SIZE = 4
NBYTES = 10
ROOM = 1 << 30
NAMESPACE = "model"
ROOT = root_key(NAMESPACE, b"")
STORED = tuple(range(100, 130))  # 7 blocks and a tail of two tokens
LAYOUTS = {"kv": KV, "windowed": WINDOWED, "hybrid": HYBRID, "recurrent": RECURRENT}

all_kv = pytest.mark.parametrize("layout", [KV, WINDOWED], ids=["kv", "windowed"])
with_state = pytest.mark.parametrize("layout", [HYBRID, RECURRENT], ids=["hybrid", "recurrent"])

Span = tuple[int, int]


def record_at(
    start: int, stop: int, part: RecordKind = RecordKind.BLOCK, salt: bytes = b""
) -> Record:
    """Tokens [start, stop) of what is stored."""
    root = root_key(NAMESPACE, salt)
    parent = [root, *chain(root, STORED, SIZE)][start // SIZE]
    return Record(NAMESPACE, parent, start, STORED[start:stop], part)


def blocks(stop: int = len(STORED)) -> list[Record]:
    return [record_at(start, min(start + SIZE, stop)) for start in range(0, stop, SIZE)]


def state(position: int) -> Record:
    return record_at((position - 1) // SIZE * SIZE, position, RecordKind.CHECKPOINT)


def cold_with(*records: Record) -> ColdIndex:
    index = ColdIndex(ROOM)
    for record in records:
        assert index.add(record, NBYTES) == []
    return index


def prompt(
    tokens: tuple[int, ...], known: int = 0, cached: int | None = None, root: BlockKey = ROOT
) -> RecallPrompt:
    """`known` tokens of it are in memory, `cached` of them of use."""
    keys = chain(root, tokens, SIZE)
    full = known // SIZE * SIZE
    return RecallPrompt(root, tokens, keys, full, known, known if cached is None else cached)


def read(
    asked: RecallPrompt,
    cold: ColdIndex,
    layout: CacheLayout = KV,
    room: int = ROOM,
    rates: Rates | None = None,
) -> list[tuple[RecordKind, int, int]]:
    found = recall(asked, cold, layout, NAMESPACE, rates or Rates(), room).records
    assert all(record.key in cold for record in found)
    return [(record.part, record.start, record.stop) for record in found]


def spans(
    asked: RecallPrompt, cold: ColdIndex, layout: CacheLayout = KV, room: int = ROOM
) -> list[Span]:
    """The blocks that are read."""
    return [
        (start, stop) for part, start, stop in read(asked, cold, layout, room) if part == "block"
    ]


ALL = [(start, min(start + SIZE, 30)) for start in range(0, 30, SIZE)]


# -- blocks ------------------------------------------------------------------------------


@all_kv
def test_a_whole_chain_is_read_parents_first_and_its_tail_last(layout: CacheLayout) -> None:
    assert spans(prompt(STORED), cold_with(*blocks()), layout) == ALL
    assert spans(prompt((*STORED, 1, 2, 3)), cold_with(*reversed(blocks())), layout) == ALL


def test_full_blocks_are_found_by_name_alone() -> None:
    index = ColdIndex(ROOM)
    index.load(ColdEntry(r.key, namespace_id(NAMESPACE), NBYTES) for r in blocks())
    assert spans(prompt(STORED), index) == ALL[:-1]  # what follows them is found by its tokens
    index.learn(blocks()[-1])
    assert spans(prompt(STORED), index) == ALL


def test_what_is_read_is_the_record_of_what_was_stored() -> None:
    found = recall(prompt(STORED), cold_with(*blocks()), KV, NAMESPACE, Rates(), ROOM).records
    assert found == blocks()


@all_kv
def test_a_gap_in_the_chain_ends_it(layout: CacheLayout) -> None:
    stored = blocks()
    del stored[5]
    assert spans(prompt(STORED), cold_with(*stored), layout) == ALL[:5]
    assert not spans(prompt(STORED), cold_with(*blocks()[1:]), layout)


def test_what_is_in_memory_is_not_read() -> None:
    asked = prompt(STORED, known=12)
    assert spans(asked, cold_with(*blocks())) == ALL[3:]
    assert spans(asked, cold_with(*blocks()[3:])) == ALL[3:]  # nor needed
    assert not spans(asked, cold_with(*blocks()[4:]))


@all_kv
@pytest.mark.parametrize("shared", range(16, 31))
def test_the_block_in_which_a_prompt_parts_is_read_for_its_beginning(
    layout: CacheLayout, shared: int
) -> None:
    asked = prompt((*STORED[:shared], 1, 2, 3, 4, 5))
    expected = [(start, stop) for start, stop in ALL if start < shared]
    assert spans(asked, cold_with(*blocks()), layout) == expected


def test_of_several_tails_the_one_that_shares_most_is_read() -> None:
    parent = blocks(24)[-1].key
    tails = [Record(NAMESPACE, parent, 24, own) for own in ((124, 7), (124, 125, 7, 8), (7,))]
    cold = cold_with(*blocks(24), *tails)
    assert spans(prompt(STORED), cold)[-1] == (24, 28)
    cold.forget(tails[1].key)
    assert spans(prompt(STORED), cold)[-1] == (24, 26)
    cold.forget(tails[0].key)
    assert spans(prompt(STORED), cold)[-1] == (20, 24)


def test_a_block_is_not_read_for_what_is_in_memory_already() -> None:
    """A sibling in memory covers tokens of the next block."""
    cold = cold_with(record_at(20, 23))
    asked = prompt(STORED, known=23, cached=0)
    assert not read(asked, cold)
    assert read(prompt(STORED, known=22, cached=0), cold) == [(RecordKind.BLOCK, 20, 23)]


def test_a_full_block_is_read_where_memory_has_its_beginning_only() -> None:
    asked = prompt(STORED, known=6, cached=6)
    assert spans(asked, cold_with(*blocks())) == ALL[1:]


def test_a_state_is_not_taken_for_a_block() -> None:
    stored = [*blocks(20), record_at(20, 24, RecordKind.CHECKPOINT), record_at(20, 22)]
    assert spans(prompt(STORED), cold_with(*stored)) == [*ALL[:5], (20, 22)]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_another_tenant_gets_nothing(layout: CacheLayout) -> None:
    asked = prompt(STORED, root=root_key(NAMESPACE, b"somebody"))
    assert not read(asked, cold_with(*blocks(), state(30), state(24)), layout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_an_empty_tier_or_prompt_gives_nothing(layout: CacheLayout) -> None:
    assert not read(prompt(STORED), cold_with(), layout)
    assert not read(prompt(()), cold_with(*blocks(), state(24)), layout)
    assert not read(prompt(STORED, known=30), cold_with(*blocks(), state(30)), layout)


# -- states ------------------------------------------------------------------------------


@with_state
def test_the_deepest_state_is_read_with_the_blocks_before_it(layout: CacheLayout) -> None:
    cold = cold_with(*blocks(), state(18), state(22), state(16))
    expected = [*((RecordKind.BLOCK, *span) for span in ALL[:6]), (RecordKind.CHECKPOINT, 20, 22)]
    assert read(prompt(STORED), cold, layout) == expected


@with_state
@pytest.mark.parametrize("position", range(16, 31))
def test_a_state_at_any_position_is_found(layout: CacheLayout, position: int) -> None:
    cold = cold_with(*blocks(), state(position))
    found = read(prompt(STORED), cold, layout)
    assert found[-1][0] == RecordKind.CHECKPOINT and found[-1][2] == position
    assert [span for _, *span in found[:-1]] == [list(s) for s in ALL if s[0] < position]


@with_state
def test_without_a_state_nothing_is_read(layout: CacheLayout) -> None:
    assert not read(prompt(STORED), cold_with(*blocks()), layout)


@with_state
def test_a_state_that_the_blocks_do_not_reach_is_of_no_use(layout: CacheLayout) -> None:
    stored = [record for record in blocks() if record.start != 20]
    cold = cold_with(*stored, state(24), state(22), state(20), state(28))
    assert read(prompt(STORED), cold, layout)[-1] == (RecordKind.CHECKPOINT, 16, 20)
    assert not read(prompt(STORED), cold_with(*stored, state(24)), layout)
    assert not read(prompt(STORED), cold_with(*blocks(18), state(19)), layout)


@with_state
def test_a_state_past_where_the_prompt_parts_is_not_read(layout: CacheLayout) -> None:
    asked = prompt((*STORED[:22], 1, 2, 3, 4))
    cold = cold_with(*blocks(), state(24), state(23))
    assert not read(asked, cold, layout)
    assert cold.add(state(22), NBYTES) == []
    assert read(asked, cold, layout)[-1] == (RecordKind.CHECKPOINT, 20, 22)


@with_state
def test_a_state_after_other_tokens_is_not_read(layout: CacheLayout) -> None:
    """It is a child of the same block and no longer than the block in memory."""
    other = Record(NAMESPACE, record_at(20, 24).parent, 20, (7, 8), RecordKind.CHECKPOINT)
    assert not read(prompt(STORED), cold_with(*blocks(), other), layout)


@with_state
def test_with_all_blocks_in_memory_only_the_state_is_read(layout: CacheLayout) -> None:
    asked = prompt(STORED, known=30, cached=8)
    assert read(asked, cold_with(state(28)), layout) == [(RecordKind.CHECKPOINT, 24, 28)]
    assert not read(asked, cold_with(state(8), state(7)), layout)  # as deep as the one in memory


@with_state
def test_of_the_blocks_only_those_before_the_state_are_read(layout: CacheLayout) -> None:
    found = read(prompt(STORED, known=8, cached=0), cold_with(*blocks(), state(17)), layout)
    spans = [(8, 12), (12, 16), (16, 20)]
    assert found == [
        *((RecordKind.BLOCK, *span) for span in spans),
        (RecordKind.CHECKPOINT, 16, 17),
    ]


# -- what a store that can't be listed is asked for -------------------------------------------


def asked(
    prompt: RecallPrompt,
    *checkpoints_at: int,
    layout: CacheLayout = KV,
    index: ColdIndex | None = None,
) -> list[tuple[RecordKind, int, int]]:
    found = candidates(prompt, index or ColdIndex(ROOM), layout, NAMESPACE, checkpoints_at)
    known = {record.key for record in [*blocks(), *(state(n) for n in range(1, 31))]}
    assert all(record.key in known or record.stop % SIZE for record in found)
    return [(record.part, record.start, record.stop) for record in found]


ALL_BLOCKS = [(RecordKind.BLOCK, *span) for span in ALL]


@all_kv
def test_full_blocks_and_the_tail_are_asked_for(layout: CacheLayout) -> None:
    assert asked(prompt(STORED), 7, 18, layout=layout) == ALL_BLOCKS
    assert asked(prompt(STORED, known=12), layout=layout) == ALL_BLOCKS[3:]
    assert asked(prompt(STORED, known=14), layout=layout) == ALL_BLOCKS[3:]
    assert asked(prompt(STORED[:24]), layout=layout) == ALL_BLOCKS[:6]


@with_state
def test_states_are_asked_for_where_prompts_leave_them(layout: CacheLayout) -> None:
    """With the short block that ends there, if one may; not where memory has as much already."""
    at = (
        (RecordKind.BLOCK, 16, 18),
        (RecordKind.CHECKPOINT, 16, 18),
        (RecordKind.CHECKPOINT, 20, 24),
    )
    assert asked(prompt(STORED), 24, 18, 31, layout=layout) == [*ALL_BLOCKS, *at]
    found = asked(prompt(STORED, known=30, cached=8), 8, 18, 24, layout=layout)
    assert [each for each in found if each[0] == RecordKind.CHECKPOINT] == list(at[1:])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_what_is_known_or_too_little_is_not_asked_for(layout: CacheLayout) -> None:
    cold = cold_with(*blocks()[:5], state(24))
    found = asked(prompt(STORED), 24, 28, layout=layout, index=cold)
    assert [part for part in found if part[0] == RecordKind.BLOCK] == ALL_BLOCKS[5:]
    assert layout.checkpointed == ((RecordKind.CHECKPOINT, 24, 28) in found)
    assert (RecordKind.CHECKPOINT, 20, 24) not in found
    assert not asked(prompt(STORED[:15]), 15, layout=layout)
    assert not asked(prompt(STORED, known=15), 30, layout=layout)
    assert asked(prompt(STORED[:16]), layout=layout) and asked(prompt(STORED, known=14))


# -- room --------------------------------------------------------------------------------


@all_kv
@pytest.mark.parametrize("count", range(4, 9))
def test_no_more_is_read_than_there_is_room_for(layout: CacheLayout, count: int) -> None:
    cold = cold_with(*blocks())
    for room in (count * NBYTES, count * NBYTES + NBYTES - 1):
        assert spans(prompt(STORED), cold, layout, room) == ALL[:count]


def test_a_short_block_may_fit_where_the_next_one_does_not() -> None:
    cold = cold_with(*blocks(), record_at(20, 22))
    cold.resize(record_at(20, 24).key, 3 * NBYTES)
    assert spans(prompt(STORED), cold, KV, 5 * NBYTES) == ALL[:5]
    cold.forget(record_at(20, 24).key)
    assert spans(prompt(STORED), cold, KV, 6 * NBYTES) == [*ALL[:5], (20, 22)]


@with_state
def test_a_state_counts_as_well(layout: CacheLayout) -> None:
    """Where the deepest one does not fit, one before it may."""
    cold = cold_with(*blocks(), state(28), state(24), state(18))
    for room, position in ((8, 28), (7, 24), (6, 18)):
        found = recall(prompt(STORED), cold, layout, NAMESPACE, Rates(), room * NBYTES).records
        assert found[-1] == state(position)
        assert len(found) <= room
    assert not read(prompt(STORED), cold, layout, 5 * NBYTES)


# -- whether it pays ---------------------------------------------------------------------


def test_little_is_computed_sooner_than_it_is_read() -> None:
    cold = cold_with(*blocks())
    assert not read(prompt(STORED[:15]), cold)
    assert spans(prompt(STORED[:16]), cold) == ALL[:4]
    assert not read(prompt(STORED, known=15), cold)
    assert spans(prompt(STORED, known=14), cold) == ALL[3:]


def test_a_tier_that_is_slower_than_computing_is_not_asked() -> None:
    cold = cold_with(*blocks())
    rates = Rates(seconds_per_token=0.001)
    for per_byte, pays in ((0.0, True), (0.0003, True), (0.0004, False), (1.0, False)):
        rates.seconds_per_byte = per_byte
        assert bool(read(prompt(STORED), cold, rates=rates)) is pays


def test_until_both_are_known_reading_pays() -> None:
    assert Rates().reading_pays(16, ROOM)
    assert Rates(seconds_per_byte=1.0).reading_pays(16, ROOM)
    assert Rates(seconds_per_token=1e-9).reading_pays(16, ROOM)
    assert not Rates().reading_pays(15, 0)


def test_rates_are_those_of_late() -> None:
    rates = Rates()
    rates.note_computing(100, 1.0)
    rates.note_reading(1000, 1.0)
    assert (rates.seconds_per_token, rates.seconds_per_byte) == (0.01, 0.001)
    rates.note_computing(15, 99.0)  # a forward of little says nothing
    rates.note_reading(0, 99.0)
    assert (rates.seconds_per_token, rates.seconds_per_byte) == (0.01, 0.001)
    for _ in range(20):
        rates.note_computing(100, 2.0)
        rates.note_reading(1000, 2.0)
    assert rates.seconds_per_token == pytest.approx(0.02, rel=0.01)
    assert rates.seconds_per_byte == pytest.approx(0.002, rel=0.01)


def test_patience_ends_where_computing_would() -> None:
    assert Rates().patience(5_000) == pytest.approx(5.0), "a guess, before it was measured"
    assert Rates(seconds_per_token=0.001).patience(100) == 1.0
    assert Rates(seconds_per_token=0.001).patience(5_000) == pytest.approx(5.0)
    assert Rates(seconds_per_token=0.02).patience(100_000) < LONGEST_READ_SECONDS


# -- why not all is read -----------------------------------------------------------------


def why(room: int, rates: Rates | None = None, known: int = 0) -> Miss | None:
    asked, cold = prompt(STORED, known), cold_with(*blocks())
    return recall(asked, cold, KV, NAMESPACE, rates or Rates(), room).why


def test_it_is_told_why_not_all_is_read_that_is_stored() -> None:
    assert why(ROOM) is None
    assert why(5 * NBYTES) is why(1 * NBYTES) is why(0) is Miss.NO_ROOM
    assert why(0, known=20) is None, "so little is computed"
    slow = Rates(seconds_per_token=0.001, seconds_per_byte=1.0)
    assert why(ROOM, slow) is Miss.SLOW
