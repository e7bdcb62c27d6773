"""The cold tier over real files: nobody waits, only blocks are lost, and nothing wrong is served.

Blocks are fakes of a few bytes; threads, files and errors are real.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.blocks.keys import namespace_id, root_key
from omlx_server.core.blocks.record import PackedArrays, Record, RecordKind
from omlx_server.store.block_file import decode, encode
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.disk import FileOperations
from omlx_server.store.mediums.medium import Buffer, MediumError, Name
from omlx_server.store.written import WRITTEN
from tests.store.cold_tier import (
    DATA,
    DAY,
    SECRET,
    SOON,
    SPACE,
    Gate,
    chain,
    content,
    fetch,
    hanging,
    in_index,
    name_of,
    on_disk,
    opened,
    path_of,
    polled,
    same,
    settle,
    until,
    write,
)
from tests.store.faults import Fault, Faulty, Kind


def bytes_on_disk(root: Path) -> int:
    return sum(found.nbytes for found in Files(root).scan())


# -- writing and reading -----------------------------------------------------------------


def test_blocks_come_back_in_the_next_process(tmp_path: Path) -> None:
    blocks = chain(5)
    state = Record(SPACE, blocks[2].key, 3, (7,), RecordKind.CHECKPOINT, worth=3)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks, state)
    assert on_disk(tmp_path) == {record.key for record in [*blocks, state]}
    with opened(Files(tmp_path)) as again:
        assert list(again.index.children(blocks[2].key)) in ([blocks[3], state], [state, blocks[3]])
        for record in [*blocks, state]:
            recalled = fetch(again, record)
            assert recalled.record == record and recalled.record.worth == record.worth
            assert same(recalled.packed, record) and recalled.reason == ""
        assert again.report().read == 6
        assert fetch(again, chain(6)[5]).reason == "gone"


def test_the_index_is_there_when_the_start_returns(tmp_path: Path) -> None:
    """The first prompt may come before the first poll."""
    with opened(Files(tmp_path)) as tier:
        write(tier, *chain(3))
    with opened(Files(tmp_path), settled=False) as again:
        assert len(again.index) == 3


def test_a_block_is_served_while_it_waits_to_be_written(tmp_path: Path) -> None:
    first, second = chain(2)
    with hanging(tmp_path, "write") as (tier, gate):
        gate.open.clear()
        write(tier, first, second)
        assert gate.hanging.wait(SOON)
        for record in (first, second):
            assert same(fetch(tier, record).packed, record)
        assert tier.report().queued == 2 * DATA and tier.report().read == 0
        assert not on_disk(tmp_path)
        gate.open.set()
        settle(tier)
        assert tier.report().queued == 0
        assert same(fetch(tier, second).packed, second)
        assert tier.report().read == 1


def test_what_the_queue_can_not_take_is_dropped_and_counted(tmp_path: Path) -> None:
    blocks = chain(5)
    with hanging(tmp_path, "write", queue_bytes=3 * DATA) as (tier, gate):
        gate.open.clear()
        write(tier, *blocks)
        assert tier.report().dropped == {"queue": 2}
        assert in_index(tier) == {record.key for record in blocks[:3]}
        gate.open.set()
        settle(tier)
        write(tier, *blocks)
        settle(tier)
        assert on_disk(tmp_path) == in_index(tier) == {record.key for record in blocks}


def test_a_dropped_block_is_never_packed(tmp_path: Path) -> None:
    def never() -> PackedArrays:
        raise AssertionError("packed for nothing")

    (record,) = chain(1)
    with opened(Files(tmp_path), queue_bytes=10) as tier:
        tier.write(record, never, DATA)
    with opened(Files(tmp_path), budget=10) as tier:
        tier.write(record, never, DATA)
        assert tier.report().dropped == {"budget": 1}


def test_a_block_that_is_there_is_not_written_twice(tmp_path: Path) -> None:
    blocks = chain(3)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
        write(tier, *blocks)
        settle(tier)
        write(tier, *blocks)
        settle(tier)
        assert tier.report().written == 3


def test_a_block_that_can_not_be_encoded_does_not_end_the_thread(tmp_path: Path) -> None:
    endless = Record(SPACE, root_key(SPACE, b""), 0, tuple(range(5000)))
    (record,) = chain(1)
    with opened(Files(tmp_path)) as tier:
        write(tier, endless, record)
        settle(tier)
        assert tier.report().dropped == {"format": 1}
        assert same(fetch(tier, record).packed, record)


def test_reads_go_before_writes(tmp_path: Path) -> None:
    blocks = chain(20)
    with opened(Files(tmp_path)) as tier:
        write(tier, blocks[0])
    with hanging(tmp_path, "write") as (tier, gate):
        gate.open.clear()
        write(tier, *blocks[1:])
        assert gate.hanging.wait(SOON)
        tier.read(blocks[0], SOON)
        gate.calls.clear()
        gate.open.set()
        until(lambda: any(r.record == blocks[0] for r in polled(tier)))
        settle(tier)
        before = gate.calls[: gate.calls.index("open_read")]
        assert before.count("replace") == 1, "only the write under way came first"


def test_evicted_and_written_again_before_the_disk_keeps_up(tmp_path: Path) -> None:
    """Write, delete and write of one block in the queue: the last word counts, also while the
    first write is answered and the second is not."""
    (record,) = chain(1)
    (other,) = chain(1, tag=1)
    with hanging(tmp_path, "unlink", budget=DATA + 600) as (tier, gate):
        gate.open.clear()
        write(tier, record, other, record)
        assert gate.hanging.wait(SOON)
        assert list(polled(tier)) == []
        assert tier.report().written == 1
        tier.read(record, SOON)
        came = list(polled(tier))
        gate.open.set()
        came += settle(tier)
        assert [same(recalled.packed, record) for recalled in came] == [True]
        assert on_disk(tmp_path) == in_index(tier) == {record.key}


def test_cleared_and_written_again_before_the_disk_keeps_up(tmp_path: Path) -> None:
    blocks = chain(3)
    with hanging(tmp_path, "write") as (tier, gate):
        gate.open.clear()
        write(tier, *blocks)
        tier.clear(SPACE)
        write(tier, *blocks[:2])
        gate.open.set()
        settle(tier)
        assert on_disk(tmp_path) == in_index(tier) == {record.key for record in blocks[:2]}


def salted(salt: bytes) -> list[Record]:
    """Blocks of one sequence of a tenant, and a state."""
    first = Record(SPACE, root_key(SPACE, salt), 0, (1,))
    second = Record(SPACE, first.key, 1, (2,))
    return [first, second, Record(SPACE, second.key, 2, (3,), RecordKind.CHECKPOINT)]


@pytest.mark.parametrize("known", [True, False])
def test_what_one_salt_has_stored_goes_and_nothing_else(tmp_path: Path, known: bool) -> None:
    """Also while a scan has found names only: then it goes when it is known whose it is."""
    mine, theirs = salted(b"mine"), salted(b"theirs")
    with opened(Files(tmp_path)) as tier:
        write(tier, *mine, *theirs)
    gate = Gate("read")
    if not known:
        (tmp_path / WRITTEN).unlink()  # its read would hang before the scan
        gate.open.clear()
        tier = ColdTier(
            Files(tmp_path, operations=gate), SECRET, budget=1 << 30, queue_bytes=1 << 30
        )
        tier._worker.start()
        assert tier._worker.scanned.wait(SOON)
        tier.collect()
    else:
        tier = ColdTier(Files(tmp_path), SECRET, budget=1 << 30, queue_bytes=1 << 30)
        tier.start()
    try:
        assert len(tier.index) == 6
        tier.clear_salt(b"mine")
        assert len(tier.index) == (3 if known else 6)
        gate.open.set()
        settle(tier)
        assert on_disk(tmp_path) == in_index(tier) == {record.key for record in theirs}
    finally:
        gate.open.set()
        tier.close(SOON)


def test_a_chain_goes_with_the_block_that_is_named(tmp_path: Path) -> None:
    """A rank is told the blocks that may be wrong, and must not keep the first of them."""
    mine, theirs = salted(b"mine"), salted(b"theirs")
    with opened(Files(tmp_path)) as tier:
        write(tier, *mine, *theirs)
        settle(tier)
        tier.clear_chains([mine[1].key])
        settle(tier)
        left = {record.key for record in (mine[0], *theirs)}
        assert on_disk(tmp_path) == in_index(tier) == left


def test_what_one_salt_has_on_its_way_to_the_disk_goes_as_well(tmp_path: Path) -> None:
    mine, theirs = salted(b"mine"), salted(b"theirs")
    with hanging(tmp_path, "write") as (tier, gate):
        gate.open.clear()
        write(tier, *mine, *theirs)
        tier.clear_salt(b"mine")
        write(tier, mine[0])
        gate.open.set()
        settle(tier)
        left = {record.key for record in (mine[0], *theirs)}
        assert on_disk(tmp_path) == in_index(tier) == left


# -- the budget --------------------------------------------------------------------------


def test_ten_times_as_much_as_the_budget_is_held_to_one_block(tmp_path: Path) -> None:
    budget = 20_000
    largest = 0
    with opened(Files(tmp_path), budget=budget) as tier:
        for tag in range(20):
            for record in chain(10, tag=tag):
                write(tier, record)
                list(polled(tier))
            settle(tier)
            largest = max(largest, bytes_on_disk(tmp_path))
            assert tier.index.nbytes == bytes_on_disk(tmp_path) <= budget
            assert on_disk(tmp_path) == in_index(tier)
        assert tier.report().evicted > 150
    assert largest > budget * 0.8
    with opened(Files(tmp_path), budget=budget // 3) as again:
        assert again.index.nbytes == bytes_on_disk(tmp_path) <= budget // 3
        assert on_disk(tmp_path) == in_index(again)
        write(again, *chain(3, tag=99))
        settle(again)
        assert bytes_on_disk(tmp_path) <= budget // 3


class Weighing(FileOperations):
    """Knows the bytes of all blocks that are there, and the most that there ever were."""

    nbytes = 0
    most = 0

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        self.nbytes += target.stat().st_size
        self.most = max(self.most, self.nbytes)

    def unlink(self, path: Path) -> None:
        nbytes = path.stat().st_size
        super().unlink(path)
        self.nbytes -= nbytes


def test_the_budget_is_held_at_any_moment(tmp_path: Path) -> None:
    """While a writer is ahead of the disk; the sizes of headers are known only afterwards."""
    size, budget = 20_000, 200_000
    disk = Weighing()
    with opened(Files(tmp_path, operations=disk), budget=budget) as tier:
        for tag in range(10):
            write(tier, *chain(10, tag=tag), size=size)
            list(polled(tier))
        settle(tier)
    assert budget - size <= disk.most <= budget + size


def test_the_oldest_goes_first_and_a_head_after_its_tail(tmp_path: Path) -> None:
    old, new = chain(4, tag=1), chain(4, tag=2)
    with opened(Files(tmp_path)) as tier:
        write(tier, *old, *new)
        settle(tier)
        each = tier.index.nbytes // 8
    for number, record in enumerate((*old, *new)):
        os.utime(path_of(tmp_path, record), (1.7e9 + number, 1.7e9 + number))
    with opened(Files(tmp_path), budget=each * 8 + 8) as again:
        for record in old:
            fetch(again, record)
            assert path_of(tmp_path, record).stat().st_mtime > 1.75e9, "for the next process"
        write(again, *chain(2, tag=3))
        settle(again)
        left = in_index(again)
        assert {record.key for record in (*old, *new[:2])} <= left


def test_a_smaller_budget_after_a_restart_keeps_heads(tmp_path: Path) -> None:
    """Though they were written first, and nothing but names is known at the start."""
    blocks = chain(10)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
        settle(tier)
        nbytes = tier.index.nbytes
    for number, record in enumerate(blocks):
        os.utime(path_of(tmp_path, record), (1.7e9 + number, 1.7e9 + number))
    with opened(Files(tmp_path), budget=nbytes // 2) as again:
        assert on_disk(tmp_path) == in_index(again) == {record.key for record in blocks[:5]}


# -- the end -----------------------------------------------------------------------------


def test_the_end_comes_in_time_though_the_disk_hangs(tmp_path: Path) -> None:
    gate = Gate("write")
    tier = ColdTier(Files(tmp_path, operations=gate), SECRET, budget=1 << 30, queue_bytes=1 << 30)
    tier.start()
    gate.open.clear()
    write(tier, *chain(5))
    begun = time.monotonic()
    tier.close(0.3)
    assert time.monotonic() - begun < 2.5
    gate.open.set()
    until(lambda: not tier._worker.is_alive())


def test_the_end_writes_what_is_queued(tmp_path: Path) -> None:
    blocks = chain(50)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
    assert on_disk(tmp_path) == {record.key for record in blocks}


def test_what_is_queued_can_be_waited_for_from_any_thread(tmp_path: Path) -> None:
    gate = Gate("write")
    tier = ColdTier(Files(tmp_path, operations=gate), SECRET, budget=1 << 30, queue_bytes=1 << 30)
    tier.start()
    gate.open.clear()
    write(tier, *(blocks := chain(5)))
    tier.drain(0.1)
    assert len(on_disk(tmp_path)) < 5
    threading.Timer(0.2, gate.open.set).start()
    with ThreadPoolExecutor(1) as other:
        other.submit(tier.drain, SOON).result()
    assert on_disk(tmp_path) == {record.key for record in blocks}
    tier.close(SOON)


# -- two processes -----------------------------------------------------------------------


def test_a_second_process_reads_only(tmp_path: Path) -> None:
    blocks = chain(4)
    first, second = Lock(tmp_path), Lock(tmp_path)
    assert first.acquire() and not second.acquire()
    with opened(Files(tmp_path), lock=first) as tier:
        write(tier, *blocks[:3])
        settle(tier)
        path_of(tmp_path, blocks[2]).write_bytes(b"damaged")
        before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
        with opened(Files(tmp_path, writable=False), lock=second, budget=DATA) as reader:
            write(reader, blocks[3])
            assert fetch(reader, blocks[2]).packed is None
            reader.clear("other")
            settle(reader)
        with opened(Files(tmp_path, writable=False), lock=second) as reader:
            assert same(fetch(reader, blocks[0]).packed, blocks[0])
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    third = Lock(tmp_path)
    assert third.acquire(), "the lock is given back at the end"
    third.release()


def test_what_the_other_process_removed_is_a_miss(tmp_path: Path) -> None:
    blocks = chain(3)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
        settle(tier)
        with opened(Files(tmp_path, writable=False)) as reader:
            tier.clear(SPACE)
            settle(tier)
            assert fetch(reader, blocks[1]).reason == "gone"
            assert blocks[1].key not in reader.index


# -- errors ------------------------------------------------------------------------------


@dataclass
class Session:
    """Everything that a tier does, and every answer checked."""

    tier: ColdTier
    refused: int = 0

    def run(self) -> None:
        blocks = chain(6)
        write(self.tier, *blocks[:3])
        settle(self.tier)
        self.read(*blocks[:2])
        write(self.tier, *chain(3, tag=1))
        settle(self.tier)
        self.read(blocks[0], blocks[2])
        self.tier.clear("other")
        write(self.tier, *blocks[3:])
        settle(self.tier)
        self.read(*blocks)

    def read(self, *records: Record) -> None:
        for record in records:
            recalled = fetch(self.tier, record)
            assert recalled.reason != "timeout"
            if recalled.packed is None:
                self.refused += 1
            else:
                assert same(recalled.packed, record) and recalled.reason == ""


def each_fault(root: Path) -> int:
    """How many operations a session takes, on a directory with something in it."""
    prepare(root)
    operations = Faulty(Fault(0, Kind.BEFORE))
    with opened(Files(root, operations=operations), budget=5 * 1500) as tier:
        Session(tier).run()
        settle(tier)
        return operations.count  # without those of the end


def prepare(root: Path) -> None:
    files = Files(root)
    for record in (*chain(2, "other"), *chain(1)):
        files.put(name_of(record), encode(record, content(record), SECRET))
    (root / ".tmp-999999999-00000000-00000000").touch()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (Kind.BEFORE, errno.EIO),
        (Kind.BEFORE, errno.ENOSPC),
        (Kind.BEFORE, errno.EROFS),
        (Kind.AFTER, errno.EIO),
        (Kind.NOTHING, 0),
    ],
)
def test_any_operation_may_fail(tmp_path: Path, kind: Kind, code: int) -> None:
    count = each_fault(tmp_path / "whole")
    assert count > 80
    step = 2 if (kind, code) == (Kind.BEFORE, errno.EIO) else 5  # by turns: each takes a while
    for at in range(1 + code % step, count + 1, step):
        root = tmp_path / str(at)
        prepare(root)
        operations = Faulty(Fault(at, kind, code))
        with opened(Files(root, operations=operations), budget=5 * 1500) as tier:
            Session(tier).run()
            write(tier, *chain(2, tag=9))
            settle(tier)
            for record in chain(2, tag=9):
                assert same(fetch(tier, record).packed, record), "it does not write again"
            settle(tier)
            scanning = operations.hit in ("scan", "stat_entry", "is_directory")
            if kind is Kind.BEFORE and not scanning:
                assert on_disk(root) == in_index(tier), operations.hit
            assert in_index(tier) - on_disk(root) == set(), operations.hit
            for entry in list(tier.index.entries()):
                data = Files(root).get(Name(entry.namespace, entry.key.hex()))
                assert data is not None and len(data) == entry.nbytes
                decode(data, SECRET, Name(entry.namespace, entry.key.hex()))
        assert not operations.leaked(), operations.hit
        shutil.rmtree(root)


class Broken(FileOperations):
    """All changes fail while `code` is set."""

    code = 0

    def _check(self) -> None:
        if self.code:
            raise OSError(self.code, "planted")

    def open_new(self, path: Path) -> int:
        self._check()
        return super().open_new(path)

    def unlink(self, path: Path) -> None:
        self._check()
        super().unlink(path)

    def set_mtime(self, path: Path, when: float) -> None:
        self._check()
        super().set_mtime(path, when)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "full"), (errno.EROFS, "read-only"), (errno.EIO, "io")],
)
def test_a_disk_that_takes_nothing_still_gives(
    tmp_path: Path, code: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = chain(20)
    disk = Broken()
    with opened(Files(tmp_path, operations=disk)) as tier:
        write(tier, *blocks[:5])
        settle(tier)
        disk.code = code
        write(tier, *blocks[5:])
        settle(tier)
        assert tier.report().dropped == {reason: 15}
        assert len(caplog.records) == 1, "one warning a minute"
        for record in blocks[:5]:
            assert same(fetch(tier, record).packed, record)
        assert fetch(tier, blocks[5]).reason == "gone"
        disk.code = 0
        write(tier, *blocks[5:])
        settle(tier)
        assert on_disk(tmp_path) == in_index(tier) == {record.key for record in blocks}


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO])
def test_deletes_that_failed_are_made_later(tmp_path: Path, code: int) -> None:
    disk = Broken()
    with opened(Files(tmp_path, operations=disk), budget=5 * 1500) as tier:
        write(tier, *chain(4))
        settle(tier)
        disk.code = code
        write(tier, *chain(4, tag=1))
        settle(tier)
        disk.code = 0
        write(tier, *chain(4, tag=2))
        settle(tier)
        settle(tier)
        assert on_disk(tmp_path) == in_index(tier)
        assert bytes_on_disk(tmp_path) <= 5 * 1500


def test_a_leftover_that_can_not_be_removed_hides_no_block(tmp_path: Path) -> None:
    prepare(tmp_path)
    disk = Broken()
    disk.code = errno.EROFS
    with opened(Files(tmp_path, operations=disk)) as tier:
        assert len(tier.index) == 3
        (record,) = chain(1)
        assert same(fetch(tier, record).packed, record)


class OneUnreadable(FileOperations):
    path = Path()

    def open_read(self, path: Path) -> int:
        if path == self.path:
            raise OSError(errno.EACCES, "planted")
        return super().open_read(path)


def test_a_file_that_can_not_be_read_hides_no_other(tmp_path: Path) -> None:
    blocks = chain(10)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
    disk = OneUnreadable()
    disk.path = path_of(tmp_path, blocks[4])
    with opened(Files(tmp_path, operations=disk)) as again:
        known = [entry for entry in again.index.entries() if entry.record is not None]
        assert len(known) == 9


def test_a_description_that_leads_nowhere_does_not_end_the_thread(tmp_path: Path) -> None:
    for path in ("x" * 5000, "a\\u0000b", ""):
        root = tmp_path / str(len(path))
        with opened(Files(root)) as tier:
            tier.describe(SPACE, "m", Path("/"), 64)
            write(tier, *chain(2))
        (about,) = root.glob("*/namespace.json")
        about.write_text(about.read_text().replace('"path": "/"', f'"path": "{path}"'))
        with opened(Files(root)) as again:
            assert same(fetch(again, chain(1)[0]).packed, chain(1)[0])


# -- damage under a running tier ---------------------------------------------------------


def flip(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path, other: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def swap(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def empty(path: Path, other: Path) -> None:
    os.truncate(path, 0)


def delete(path: Path, other: Path) -> None:
    path.unlink()


def append(path: Path, other: Path) -> None:
    with path.open("ab") as file:
        file.write(b"junk")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (flip, "digest"),
        (truncate, "digest"),
        (append, "digest"),
        (swap, "key"),
        (empty, "truncated"),
        (delete, "gone"),
    ],
)
def test_a_damaged_file_is_a_miss_counted_and_removed(
    tmp_path: Path, harm: Callable[[Path, Path], None], reason: str
) -> None:
    blocks = chain(3)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
        settle(tier)
        harm(path_of(tmp_path, blocks[1]), path_of(tmp_path, blocks[2]))
        recalled = fetch(tier, blocks[1])
        assert (recalled.packed, recalled.reason) == (None, reason)
        assert tier.report().failed == {reason: 1}
        settle(tier)
        assert on_disk(tmp_path) == in_index(tier) == {blocks[0].key, blocks[2].key}
        write(tier, blocks[1])
        settle(tier)
        assert same(fetch(tier, blocks[1]).packed, blocks[1])


@pytest.mark.parametrize("harm", [swap, flip, truncate, append, delete])
def test_a_file_damaged_before_the_start_is_never_served(
    tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    blocks = chain(3)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
    harm(path_of(tmp_path, blocks[1]), path_of(tmp_path, blocks[2]))
    with opened(Files(tmp_path)) as again:
        assert fetch(again, blocks[1]).packed is None
        assert same(fetch(again, blocks[2]).packed, blocks[2])


def test_a_file_of_another_secret_is_never_served(tmp_path: Path) -> None:
    (record,) = chain(1)
    Files(tmp_path).put(name_of(record), encode(record, content(record), b"another" * 4))
    with opened(Files(tmp_path)) as tier:
        assert fetch(tier, record).reason == "digest"


def test_the_directory_may_vanish_while_it_is_used(tmp_path: Path) -> None:
    root, blocks = tmp_path / "kv", chain(4)
    with opened(Files(root)) as tier:
        write(tier, *blocks[:3])
        settle(tier)
        shutil.rmtree(root)
        assert fetch(tier, blocks[0]).reason == "gone"
        write(tier, blocks[0], blocks[3])
        settle(tier)
        assert same(fetch(tier, blocks[0]).packed, blocks[0])
        assert on_disk(root) == {blocks[0].key, blocks[3].key}


# -- time --------------------------------------------------------------------------------


def aged(root: Path, ages: Sequence[float], now: float) -> list[Record]:
    blocks = chain(len(ages))
    with opened(Files(root)) as tier:
        write(tier, *blocks)
    for record, age in zip(blocks, ages, strict=True):
        os.utime(path_of(root, record), (now - age, now - age))
    return blocks


def test_what_was_not_used_for_long_goes(tmp_path: Path) -> None:
    blocks = aged(tmp_path, [0, 1 * DAY, 3 * DAY, 9 * DAY], time.time())
    with opened(Files(tmp_path), ttl_days=2.0) as tier:
        assert on_disk(tmp_path) == in_index(tier) == {record.key for record in blocks[:2]}
        assert tier.report().evicted == 2
    with opened(Files(tmp_path)) as tier:
        assert len(tier.index) == 2


@pytest.mark.parametrize("year", [1970, 2100])
@pytest.mark.parametrize("strays", [0, 1, 5])
def test_dates_that_can_not_be_evict_nothing(tmp_path: Path, year: int, strays: int) -> None:
    stray = time.time() - (year - 1970) * 365.25 * DAY
    aged(tmp_path, [stray] * strays + [0, DAY], time.time())
    with opened(Files(tmp_path), ttl_days=2.0) as tier:
        assert len(tier.index) == len(on_disk(tmp_path)) == strays + 2


@pytest.mark.parametrize("years", [-60, -1, 1, 80])
def test_a_wrong_clock_evicts_nothing(
    tmp_path: Path, years: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(tmp_path, [0, 0.5 * DAY, DAY], time.time())
    wrong = time.time() + years * 365 * DAY
    monkeypatch.setattr("omlx_server.store.cold.time.time", lambda: wrong)
    with opened(Files(tmp_path), ttl_days=2.0) as tier:
        assert len(tier.index) == len(on_disk(tmp_path)) == 3


# -- namespaces --------------------------------------------------------------------------


def test_blocks_of_a_model_that_is_gone_go_first(tmp_path: Path) -> None:
    here, gone = tmp_path / "here", tmp_path / "gone"
    here.mkdir()
    with opened(Files(tmp_path / "kv")) as tier:
        tier.describe("here", "m", here, 64)
        tier.describe("gone", "m", gone, 64)
        write(tier, *chain(4, "here"))
        settle(tier)
        write(tier, *chain(4, "gone"))  # used last
        settle(tier)
        nbytes = tier.index.nbytes
    with opened(Files(tmp_path / "kv"), budget=nbytes // 2 + 100) as again:
        assert in_index(again) == {record.key for record in chain(4, "here")}


def test_clear_removes_one_namespace(tmp_path: Path) -> None:
    with opened(Files(tmp_path)) as tier:
        write(tier, *chain(3), *chain(2, "other"))
        tier.clear(SPACE)
        assert fetch(tier, chain(1)[0]).packed is None
        settle(tier)
        assert on_disk(tmp_path) == in_index(tier) == {record.key for record in chain(2, "other")}
        assert not (tmp_path / namespace_id(SPACE)).exists()
        assert tier.index.nbytes == bytes_on_disk(tmp_path)


def test_a_cleared_namespace_still_says_what_it_is(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with opened(files) as tier:
        tier.describe(SPACE, "a model", tmp_path, 4)
        write(tier, *chain(3))
        tier.clear(SPACE)
        settle(tier)
        about = files.describe(namespace_id(SPACE))
        assert about is not None and about.model == "a model"


class _Noted(FileOperations):
    """Notes which threads ask the system for anything."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "threads":
            self.threads.add(threading.current_thread().name)
        return super().__getattribute__(name)


def test_only_the_thread_that_waits_for_disks_touches_them(tmp_path: Path) -> None:
    """Nobody else is to wait, and its files are not to change under its hands."""
    noted = _Noted()
    with opened(Files(tmp_path / "kv", operations=noted)) as tier:
        tier.describe(SPACE, "a model", tmp_path, 4)
        write(tier, *chain(3))
        tier.describe("other", "another", tmp_path, 4)
        write(tier, *chain(2, "other"))
        fetch(tier, chain(1)[0])
        tier.save_pins()
        tier.mark_used(chain(2))
        tier.clear("other")
        settle(tier)
    assert noted.threads == {"cold-io"}
    assert Files(tmp_path / "kv").describe(namespace_id(SPACE)) is not None


class _Flawed(FileOperations):
    """Our own code fails in a way that nobody has thought of."""

    def __init__(self) -> None:
        self.times = 0

    def replace(self, source: Path, target: Path) -> None:
        if not self.times:
            self.times += 1
            raise RuntimeError("a flaw")
        super().replace(source, target)


def test_a_flaw_costs_one_block_and_not_the_tier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(Files(tmp_path / "kv", operations=_Flawed())) as tier:
        write(tier, *chain(1))
        settle(tier)
        assert tier.stats.dropped["io"] == 1 and "a flaw" in caplog.text
        write(tier, *chain(1))
        settle(tier)
        assert fetch(tier, chain(1)[0]).packed is not None
        assert on_disk(tmp_path / "kv") == {chain(1)[0].key}


def test_directories_and_files_are_private(tmp_path: Path) -> None:
    with opened(Files(tmp_path / "kv")) as tier:
        write(tier, *chain(3))
    for path in (tmp_path / "kv").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


# -- another medium ----------------------------------------------------------------------


class Unreachable:
    """A remote store that answers sometimes."""

    def __init__(self) -> None:
        self.blocks: dict[Name, bytes] = {}
        self.reason = ""

    def _ask(self) -> None:
        if self.reason:
            raise MediumError(self.reason, "planted")

    def get(self, name: Name) -> bytes | None:
        self._ask()
        return self.blocks.get(name)

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        self._ask()
        return set(names) & self.blocks.keys()

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        self._ask()
        self.blocks[name] = b"".join(parts)

    def delete(self, name: Name) -> None:
        self._ask()
        self.blocks.pop(name, None)


@pytest.mark.parametrize("reason", ["timeout", "unreachable"])
def test_a_remote_store_that_is_away_for_a_while_loses_nothing(reason: str, tmp_path: Path) -> None:
    remote: Any = Unreachable()
    remote.close = lambda: None
    (record,) = chain(1)
    with opened(Files(tmp_path), remote=remote) as tier:
        write(tier, record)
        settle(tier)
        remote.reason = reason
        assert fetch(tier, record).reason == reason
        remote.reason = ""
        assert same(fetch(tier, record).packed, record)
