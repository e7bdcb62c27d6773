"""The bytes that the cold tier may write in a day: asked, counted, and kept over a restart."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.blocks.pins import Pin
from omlx_server.core.blocks.record import Record
from omlx_server.core.cold.index import WriteCause
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.written import WRITTEN, written_of_bytes
from tests.store.cold_tier import DATA, SPACE, chain, hanging, on_disk, opened, settle, write
from tests.store.shared_tier import serving

DAY = 739_000
LIMIT = 16 * DATA


def limited(day: int = DAY, **options: Any) -> dict[str, Any]:
    return {"daily_bytes": LIMIT, "today": lambda: day, **options}


def offer(tier: ColdTier, records: Sequence[Record], cause: WriteCause = WriteCause.KEPT) -> int:
    """Offer blocks as the tiers of a model do. Returns how many are stored then."""
    for record in records:
        if tier.may_write(record.key, DATA, cause):
            write(tier, record)
            settle(tier)
    return len(tier.index)


def test_when_the_day_is_spent_blocks_are_dropped_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(Files(tmp_path), **limited()) as tier:
        count = offer(tier, chain(40))
        report = tier.report()
        assert 10 < count < 16 and len(on_disk(tmp_path)) == count
        assert report.written_today == report.written_bytes <= LIMIT
        assert report.daily_bytes == LIMIT and report.dropped["daily_writes"] > 0
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    assert "cold_writes_per_day" in caplog.text


def test_what_came_once_leaves_the_most_to_others(
    tmp_path: Path,
) -> None:
    with opened(Files(tmp_path), **limited()) as tier:
        once = offer(tier, chain(20), WriteCause.SEEN_ONCE)
        again = offer(tier, chain(20, tag=1), WriteCause.SEEN_AGAIN) - once
        assert once == 3 and again > 2 * once
        assert tier.may_write(chain(1, tag=2)[0].key, DATA, WriteCause.KEPT)


def test_a_restart_does_not_give_the_day_back(tmp_path: Path) -> None:
    with opened(Files(tmp_path), **limited()) as tier:
        count = offer(tier, chain(40))
        nbytes = tier.report().written_today
    with opened(Files(tmp_path), **limited()) as again:
        assert again.report().written_today == nbytes and again.report().written_bytes == 0
        assert offer(again, chain(20, tag=1)) == count
    with opened(Files(tmp_path), **limited(DAY + 1)) as tomorrow:
        assert tomorrow.report().written_today == 0
        assert offer(tomorrow, chain(3, tag=1)) == count + 3


def test_a_process_that_was_killed_has_saved_nearly_all(tmp_path: Path) -> None:
    with opened(Files(tmp_path), **limited()) as tier:
        offer(tier, chain(10))
        settle(tier)
        day, nbytes = written_of_bytes((tmp_path / WRITTEN).read_bytes())
        assert day == DAY and tier.report().written_today - nbytes <= LIMIT // 16


def test_a_large_day_is_not_saved_with_every_block(tmp_path: Path) -> None:
    with opened(Files(tmp_path), **limited(daily_bytes=10**9)) as tier:
        offer(tier, chain(10))
        settle(tier)
        assert not (tmp_path / WRITTEN).exists()
    assert written_of_bytes((tmp_path / WRITTEN).read_bytes())[1] > 10 * DATA


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\x00",
        b"[" * 100_000,
        b"null",
        b'{"day":1}',
        b'{"day":739000,"bytes":-1}',
        b'{"day":739000,"bytes":1e99}',
        b'{"day":99999999,"bytes":1}',
        b'{"day":"739000","bytes":true}',
    ],
)
def test_a_damaged_file_counts_as_nothing(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / WRITTEN).write_bytes(damage)
    with opened(Files(tmp_path), **limited()) as tier:
        assert tier.report().written_today == 0
        assert offer(tier, chain(3)) == 3


def test_what_is_stored_is_marked_as_used_however_little_is_left(tmp_path: Path) -> None:
    blocks = chain(3)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
    with opened(Files(tmp_path), **limited(daily_bytes=1)) as tier:
        assert all(tier.may_write(record.key, DATA, WriteCause.SEEN_ONCE) for record in blocks)
        assert tier.report().dropped == {}


def test_pins_are_written_all_the_same(tmp_path: Path) -> None:
    blocks = chain(2)
    with opened(Files(tmp_path), **limited(daily_bytes=1)) as tier:
        keys = (blocks[0].key,)
        tier.index.pins.add(Pin("pin-1", SPACE, blocks[0].parent, 1, 0.0, keys, 1, SPACE))
        assert offer(tier, blocks) == 1


def test_blocks_that_wait_to_be_written_count_too(tmp_path: Path) -> None:
    with hanging(tmp_path, "write", **limited()) as (tier, gate):
        gate.open.clear()
        for record in chain(40):
            if tier.may_write(record.key, DATA, WriteCause.KEPT):
                write(tier, record)
        assert len(tier.index) == LIMIT // DATA
        gate.open.set()
        settle(tier)


def test_a_store_elsewhere_spares_no_disk_of_this_machine(tmp_path: Path) -> None:
    with serving(tmp_path, **limited(daily_bytes=1)) as server:
        assert server.tier.may_write(chain(1)[0].key, DATA, WriteCause.SEEN_ONCE)
        write(server.tier, *chain(3))
        settle(server.tier)
        assert server.tier.report().written_today == 0 < server.tier.report().written_bytes
