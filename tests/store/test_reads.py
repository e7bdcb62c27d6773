"""Nobody waits for a slow disk longer than it pays; what hangs costs one prompt its patience."""

import errno
import os
import time
from pathlib import Path

from omlx_server.core.blocks.record import Recalled
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.mediums.disk import FileOperations
from omlx_server.store.reads import Answered
from tests.store.clock import Clock
from tests.store.cold_tier import (
    SOON,
    SPACE,
    Gate,
    chain,
    fetch,
    hanging,
    opened,
    path_of,
    same,
    settle,
    until,
    write,
)
from tests.store.shared_tier import serving

PATIENCE = 1.0


def test_nobody_waits_for_a_slow_disk_longer_than_it_pays(tmp_path: Path) -> None:
    blocks = chain(3)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
    with hanging(tmp_path, "read") as (tier, gate):
        gate.open.clear()
        begun = time.monotonic()
        late = fetch(tier, blocks[0], patience=0.05)
        assert (late.packed, late.reason) == (None, "timeout")
        assert time.monotonic() - begun < 2
        entry = tier.index.entry(blocks[0].key)
        assert entry is not None and entry.leases == 1, "it is being read"
        assert not tier.index.take(blocks[0].key)
        for _ in range(3):  # who asks again does not make the disk read again
            assert fetch(tier, blocks[0], patience=0.01).reason == "timeout"
        gate.calls.clear()
        gate.open.set()
        assert settle(tier) == [], "a late result is nobody's"
        assert entry.leases == 0 and not tier.reads.waiting
        assert gate.calls.count("open_read") == 0
        assert tier.report().failed == {"timeout": 4}
        assert same(fetch(tier, blocks[0]).packed, blocks[0])


def test_who_asks_again_gets_what_the_first_did_not_wait_for(tmp_path: Path) -> None:
    (record,) = chain(1)
    with opened(Files(tmp_path)) as tier:
        write(tier, record)
    with hanging(tmp_path, "read") as (tier, gate):
        gate.open.clear()
        assert fetch(tier, record, patience=0.01).reason == "timeout"
        tier.read(record, SOON)
        gate.open.set()
        (recalled,) = settle(tier)
        assert same(recalled.packed, record)
        entry = tier.index.entry(record.key)
        assert entry is not None and entry.leases == 0


def test_a_lease_ends_when_a_read_fails(tmp_path: Path) -> None:
    blocks = chain(2)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
        settle(tier)
        path_of(tmp_path, blocks[0]).write_bytes(b"x")
        assert fetch(tier, blocks[0]).packed is None
        fetch(tier, blocks[1])
        assert not any(entry.leases for entry in tier.index.entries())
        assert not tier.reads.waiting


# -- what hangs --------------------------------------------------------------------------


def reasons(tier: ColdTier) -> list[str]:
    """Of what has come for a prompt by now."""
    return [event.reason for event in tier.poll(SPACE) if isinstance(event, Recalled)]


def test_a_hanging_disk_costs_one_prompt_its_patience(tmp_path: Path) -> None:
    blocks, clock = chain(4), Clock()
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
    with hanging(tmp_path, "read", clock=clock) as (tier, gate):
        gate.open.clear()
        for record in blocks[:2]:
            tier.read(record, PATIENCE)
        assert gate.hanging.wait(SOON)
        clock.now += PATIENCE
        assert reasons(tier) == []
        clock.now += 0.01
        assert reasons(tier) == ["timeout"] * 2
        for record in blocks:  # the next prompt
            tier.read(record, PATIENCE)
        assert reasons(tier) == ["timeout"] * 4 and not tier.reads.waiting
        gate.open.set()
        settle(tier)  # the disk answers, though too late
        for record in blocks:
            assert same(fetch(tier, record).packed, record)
        assert tier.report().failed == {"timeout": 6}
        assert not any(entry.leases for entry in tier.index.entries())


def test_who_is_impatient_says_nothing_of_the_disk(tmp_path: Path) -> None:
    blocks, clock = chain(2), Clock()
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
    with hanging(tmp_path, "read", clock=clock) as (tier, gate):
        gate.open.clear()
        tier.read(blocks[0], 0.2)
        clock.now += 0.3
        assert reasons(tier) == ["timeout"]
        tier.read(blocks[1], PATIENCE)
        assert tier.reads.waiting and reasons(tier) == []
        gate.open.set()
        (recalled,) = settle(tier)
        assert same(recalled.packed, blocks[1])


def test_a_hanging_store_is_asked_in_vain_once(tmp_path: Path) -> None:
    blocks, gate, clock = chain(2), Gate("stat"), Clock()
    with serving(tmp_path) as other:
        write(other.tier, *blocks)
    with serving(tmp_path, disk=gate, clock=clock) as server:
        gate.open.clear()
        server.ask(*blocks, id=1, wait=PATIENCE)
        assert gate.hanging.wait(SOON)
        assert list(server.tier.poll(SPACE)) == []
        clock.now += PATIENCE + 0.01
        assert list(server.tier.poll(SPACE)) == [Answered(1)]
        server.ask(*blocks, id=2, wait=PATIENCE)
        assert list(server.tier.poll(SPACE)) == [Answered(2)]
        assert not server.tier.reads.waiting and len(server.tier.index) == 0
        gate.open.set()
        until(lambda: not list(server.tier.poll(SPACE)) and len(server.tier.index) == 2)
        server.ask(*blocks, id=3)
        assert server.answers() == [3], "what came late is nobody's answer"


class Failing(FileOperations):
    def stat(self, path: Path) -> os.stat_result:
        raise OSError(errno.EIO, "planted")


def test_a_store_that_can_not_be_asked_answers_with_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, disk=Failing()) as server:
        server.ask(*chain(2))
        assert server.answers() == [1]
        assert len(server.tier.index) == 0
        assert server.tier.report().failed == {"io": 1}
