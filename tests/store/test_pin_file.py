"""Pins as bytes and back; and over a restart, with the tier that keeps them."""

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.core.blocks.keys import BlockKey, root_key
from omlx_server.core.blocks.pins import Pin
from omlx_server.core.blocks.record import Record
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import PINS, Files
from omlx_server.store.mediums.disk import FileOperations
from omlx_server.store.pin_file import pins_as_bytes, pins_of_bytes
from tests.store.cold_tier import (
    DATA,
    SECRET,
    SPACE,
    chain,
    fetch,
    in_index,
    on_disk,
    opened,
    same,
    settle,
    write,
)

BLOCKS = chain(3)


def pin_of(*records: Record, id: str = "pin-1", space: str = SPACE) -> Pin:
    keys = tuple(record.key for record in records)
    return Pin(id, space, root_key(space, b""), len(records), 5.25, keys, model="org/tiny")


PIN = pin_of(*BLOCKS)

key_of_anything = st.binary(min_size=32, max_size=32).map(BlockKey)
any_pin = st.builds(
    Pin,
    id=st.text(),
    namespace=st.text(),
    root=key_of_anything,
    tokens=st.integers(0, 1 << 40),
    created=st.floats(allow_nan=False, allow_infinity=False),
    keys=st.lists(key_of_anything, max_size=4).map(tuple),
    block_tokens=st.integers(1, 1 << 20),
    model=st.text(),
    tenant=st.none() | key_of_anything,
)
scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
any_json = st.recursive(scalar, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
SHAPE = json.loads(pins_as_bytes([PIN]))[0]


# -- bytes -------------------------------------------------------------------------------


@given(st.lists(any_pin, max_size=4))
def test_what_is_written_comes_back(pins: list[Pin]) -> None:
    assert pins_of_bytes(pins_as_bytes(pins)) == tuple(pins)


def test_no_token_is_written() -> None:
    """Keys, and nothing of what was said."""
    shape = dict(SHAPE)
    assert len(shape.pop("keys")) == 3 and len(shape.pop("root")) == 64
    known = {"id": "pin-1", "namespace": SPACE, "created": 5.25, "model": "org/tiny"}
    assert shape == known | {"tokens": 3, "block_tokens": 64}


@given(st.binary() | any_json.map(lambda value: json.dumps(value).encode()))
def test_other_bytes_are_no_pins(data: bytes) -> None:
    assert pins_of_bytes(data) == ()


@given(st.sampled_from(sorted(SHAPE)), any_json, st.booleans())
def test_what_makes_no_sense_hides_no_other_pin(field: str, value: object, missing: bool) -> None:
    damaged = {**SHAPE, field: value}
    if missing:
        del damaged[field]
    found = pins_of_bytes(json.dumps([SHAPE, damaged, 7, SHAPE]).encode())
    assert found[0] == found[-1] == PIN and len(found) in (2, 3)


def test_what_was_cut_off_is_no_pin() -> None:
    data = pins_as_bytes([PIN])
    assert all(pins_of_bytes(data[:length]) == () for length in range(len(data)))
    assert pins_of_bytes(b"[" * 100_000) == ()


# -- over a restart ----------------------------------------------------------------------


def pins_in(tier: ColdTier) -> list[Pin]:
    return list(tier.index.pins.all())


def save(tier: ColdTier, *pins: Pin) -> None:
    for pin in pins:
        tier.index.pins.add(pin)
    tier.save_pins()
    settle(tier)


def test_pins_outlive_the_process_and_hold_before_anything_goes(tmp_path: Path) -> None:
    with opened(Files(tmp_path)) as tier:
        write(tier, *BLOCKS)
        settle(tier)
        save(tier, PIN, pin_of(*BLOCKS[:1], id="pin-2"))
        write(tier, *chain(5, tag=1))
        settle(tier)
        each = tier.index.nbytes // 8
    with opened(Files(tmp_path), budget=3 * each + 50) as tier:  # smaller than before
        assert [pin.id for pin in pins_in(tier)] == ["pin-1", "pin-2"]
        assert in_index(tier) == on_disk(tmp_path) == {record.key for record in BLOCKS}
        write(tier, *chain(3, tag=2))
        settle(tier)
        assert in_index(tier) == on_disk(tmp_path) == {record.key for record in BLOCKS}
        assert tier.report().dropped == {"budget": 3}
        for id in ("pin-1", "pin-2"):
            tier.index.pins.remove(id)
        tier.index.release_pinned(PIN.keys)
        tier.save_pins()
        write(tier, *chain(3, tag=2))
        settle(tier)
        assert not {record.key for record in BLOCKS} & in_index(tier)
    with opened(Files(tmp_path)) as tier:
        assert pins_in(tier) == []


def test_what_is_pinned_does_not_expire(tmp_path: Path) -> None:
    with opened(Files(tmp_path)) as tier:
        write(tier, *BLOCKS, *chain(1, tag=1))
        save(tier, pin_of(BLOCKS[0]))
    for path in tmp_path.rglob("*.safetensors"):
        if path.stem != chain(1, tag=1)[0].key.hex():
            os.utime(path, (1.7e9, 1.7e9))
    with opened(Files(tmp_path), ttl_days=1.0) as tier:
        assert in_index(tier) == {BLOCKS[0].key, chain(1, tag=1)[0].key}


@pytest.mark.parametrize(
    "blocks",
    [
        2,
        0,
    ],
)
def test_pins_of_a_model_that_is_gone_are_not_loaded(tmp_path: Path, blocks: int) -> None:
    gone = chain(2, "gone")
    with opened(Files(tmp_path / "kv")) as tier:
        tier.describe("gone", "m", tmp_path / "nowhere", 1)
        tier.describe(SPACE, "m", tmp_path, 1)
        write(tier, *BLOCKS, *gone[:blocks])
        save(tier, pin_of(*gone, id="pin-gone", space="gone"), PIN)
        settle(tier)
        nbytes = tier.index.nbytes
    with opened(Files(tmp_path / "kv"), budget=nbytes * 3 // (3 + blocks) + 50) as tier:
        assert pins_in(tier) == [PIN]
        assert in_index(tier) == {record.key for record in BLOCKS}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0" * 40, b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'[{"id": 1}]'),
        pins_as_bytes([PIN])[:-9],
        json.dumps([{**SHAPE, "namespace": "\ud800"}]).encode(),
    ],
)
def test_a_damaged_file_of_pins_is_as_none_and_written_anew(tmp_path: Path, data: bytes) -> None:
    with opened(Files(tmp_path)) as tier:
        write(tier, *BLOCKS)
        save(tier, PIN)
    (tmp_path / PINS).write_bytes(data)
    with opened(Files(tmp_path)) as tier:
        assert pins_in(tier) == []
        assert same(fetch(tier, BLOCKS[0]).packed, BLOCKS[0])
        save(tier, PIN)
    with opened(Files(tmp_path)) as tier:
        assert pins_in(tier) == [PIN]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_pin_with_a_date_that_is_none_is_no_pin(value: float) -> None:
    assert pins_of_bytes(json.dumps([{**SHAPE, "created": value}]).encode()) == ()


def test_a_file_of_pins_that_can_not_be_read_or_written_costs_the_pins_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / PINS).mkdir()
    with opened(Files(tmp_path)) as tier:
        write(tier, *BLOCKS)
        save(tier, PIN)
        assert same(fetch(tier, BLOCKS[0]).packed, BLOCKS[0])
    (tmp_path / PINS).rmdir()
    with opened(Files(tmp_path)) as tier:
        assert pins_in(tier) == [] and len(tier.index) == 3
        save(tier, PIN)
    assert pins_of_bytes((tmp_path / PINS).read_bytes()) == (PIN,)
    assert (tmp_path / PINS).stat().st_mode & 0o777 == 0o600


def test_pins_are_kept_at_home_when_the_store_is_elsewhere(tmp_path: Path) -> None:
    for turn in range(2):
        home, store = Files(tmp_path / "home"), Files(tmp_path / "store")
        tier = ColdTier(home, SECRET, budget=DATA, queue_bytes=DATA, remote=store)
        tier.start()
        assert pins_in(tier) == [PIN] * turn
        tier.index.pins.add(PIN)
        tier.save_pins()
        tier.close(20)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [PINS]


class _Slow(FileOperations):
    """A disk with a second's work in its queue."""

    def replace(self, source: Path, target: Path) -> None:
        if target.suffix == ".safetensors":
            time.sleep(0.1)
        super().replace(source, target)


def test_pins_are_not_lost_behind_blocks_that_are_dropped_at_the_end(tmp_path: Path) -> None:
    """Whoever made the pin has had an answer."""
    tier = ColdTier(
        Files(tmp_path, operations=_Slow()), SECRET, budget=1 << 30, queue_bytes=1 << 30
    )
    tier.start()
    write(tier, *chain(20))
    tier.index.pins.add(pin_of(*BLOCKS, id="pin-0"))
    tier.save_pins()
    tier.index.pins.add(PIN)
    tier.save_pins()
    tier.close(0)
    assert len(on_disk(tmp_path)) < 20, "else this shows nothing"
    with opened(Files(tmp_path)) as again:
        assert pins_in(again) == [pin_of(*BLOCKS, id="pin-0"), PIN]
