"""What of a prompt is there, and what has to go for others: against plain searches."""

from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.pins import Pin, Pins
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.store.files import StoredFile
from omlx_server.store.inventory import Inventory, StoredPrefix, evictions_for, find_stored_prefix
from omlx_server.store.mediums.medium import Name

SPACE = "model|kv|3"
ROOT = root_key(SPACE, b"")
SIZE = 3
TOKEN = st.integers(0, 1)


@st.composite
def stores(draw: st.DrawFn, most: int = 12) -> list[Record]:
    """Blocks and states of many prompts; some lack what they follow."""
    heads: list[tuple[BlockKey, int]] = [(ROOT, 0)]
    records: dict[BlockKey, Record] = {}
    for _ in range(draw(st.integers(0, most))):
        parent, start = draw(st.sampled_from(heads))
        tokens = tuple(draw(st.lists(TOKEN, min_size=1, max_size=SIZE)))
        part = draw(st.sampled_from([RecordKind.BLOCK, RecordKind.BLOCK, RecordKind.CHECKPOINT]))
        record = Record(SPACE, parent, start, tokens, part)
        records[record.key] = record
        if part is RecordKind.BLOCK and len(tokens) == SIZE:
            heads.append((record.key, record.stop))
    return list(records.values())


def spelled_out(records: Iterable[Record], usable: set[BlockKey]) -> dict[BlockKey, list[Record]]:
    """The way to each block from the root, where all of it is usable."""
    ways: dict[BlockKey, list[Record]] = {ROOT: []}
    for record in records:  # parents first
        if record.parent in ways and record.key in usable and record.part is RecordKind.BLOCK:
            ways[record.key] = [*ways[record.parent], record]
    return ways


def tokens_of(way: Sequence[Record]) -> tuple[int, ...]:
    return tuple(token for record in way for token in record.tokens)


def plain_search(
    records: list[Record], tokens: tuple[int, ...], usable: set[BlockKey]
) -> StoredPrefix:
    ways = spelled_out(records, usable)
    inside = [way for way in ways.values() if tokens[: len(tokens_of(way))] == tokens_of(way)]
    longest = max(inside, key=lambda way: len(tokens_of(way)))
    states = [
        state
        for state in records
        if state.part is RecordKind.CHECKPOINT
        and state.key in usable
        and (state.parent == ROOT or state.parent in [record.key for record in longest])
        and tokens[: state.stop] == (*tokens_of(ways[state.parent]), *state.tokens)
        and state.stop <= len(tokens_of(longest))
    ]
    if not states:
        return StoredPrefix(tuple(r.key for r in longest), None, len(tokens_of(longest)))
    deepest = max(states, key=lambda state: state.stop)
    needed = tuple(record.key for record in longest if record.start < deepest.stop)
    return StoredPrefix(needed, deepest.key, deepest.stop)


@settings(deadline=None)
@given(stores(), st.lists(TOKEN, max_size=11), st.sets(st.integers(0, 11), max_size=3))
def test_the_longest_usable_prefix_is_found(
    records: list[Record], prompt: list[int], damaged: set[int]
) -> None:
    usable = {record.key for number, record in enumerate(records) if number not in damaged}
    asked: set[BlockKey] = set()

    def is_usable(key: BlockKey) -> bool:
        asked.add(key)
        return key in usable

    tokens = tuple(prompt)
    found = find_stored_prefix(ROOT, tokens, SIZE, is_usable)
    assert found == plain_search(records, tokens, usable)
    assert set(found.keys) <= asked
    for record in records:
        if record.key in asked:
            assert record.tokens == tokens[record.start : record.stop], "of somebody else"


def found_of(record: Record, nbytes: int, now: float) -> StoredFile:
    return StoredFile(Name.of(namespace_id(SPACE), record.key), nbytes, now)


def pins_of(records: Sequence[Record]) -> Pins:
    pins = Pins()
    if records:
        keys = tuple(record.key for record in records)
        pins.add(Pin("pin", SPACE, ROOT, 0, 0.0, keys))
    return pins


@settings(deadline=None)
@given(
    stores(),
    st.lists(TOKEN, min_size=1, max_size=9),
    st.integers(0, 30),
    st.sets(st.integers(0, 11), max_size=3),
    st.booleans(),
)
def test_room_is_made_by_what_is_needed_least(
    records: list[Record], prompt: list[int], spare: int, pinned: set[int], gone: bool
) -> None:
    incoming = [record for record, _ in chain(tuple(prompt))]
    there = {found_of(record, 10, now): record for now, record in enumerate(records)}
    pins = pins_of([record for number, record in enumerate(records) if number in pinned])
    models = [namespace_id(SPACE)] if gone else []
    stock = Inventory(list(there), list(there.values()), models, pins)
    budget = 10 * len(incoming) + spare
    names = evictions_for([(record, 10) for record in incoming], stock, budget)
    old = {found.name: record for found, record in there.items()}
    if names is None:
        assert pinned, "only pins can be in the way of what fits by itself"
        return
    assert len(set(names)) == len(names) and set(names) <= set(old)
    left = {record.key: record for name, record in old.items() if name not in names}
    left |= {record.key: record for record in incoming}
    assert 10 * len(left) <= budget
    assert all(record.key in left for record in incoming)
    assert not [name for name in names if old[name].key in pins]
    before = {record.key for record in [*records, *incoming]}
    for record in left.values():
        assert record.parent in left or record.parent not in before, "a child without its head"
    if 10 * len(before) <= budget:
        assert not names
    elif not pinned:
        assert 10 * (len(left) + 1) > budget, "more went than had to"


def chain(tokens: tuple[int, ...]) -> list[tuple[Record, int]]:
    records: list[tuple[Record, int]] = []
    parent = ROOT
    for start in range(0, len(tokens), SIZE):
        record = Record(SPACE, parent, start, tokens[start : start + SIZE])
        records.append((record, 10))
        parent = record.key
    return records


def test_of_two_short_ends_the_longer_one_is_taken() -> None:
    ends = [Record(SPACE, ROOT, 0, tokens) for tokens in ((1,), (1, 0), (1, 1))]
    keys = {record.key for record in ends}
    found = find_stored_prefix(ROOT, (1, 0, 0), SIZE, lambda key: key in keys)
    assert found == StoredPrefix((ends[1].key,), None, 2)
