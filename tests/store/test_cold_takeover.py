"""A directory changes hands, is removed, or can be read in part only: the tier goes on."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.blocks.keys import namespace_id, root_key
from omlx_server.core.blocks.pins import Pin
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.disk import FileOperations
from omlx_server.store.secret import load_secret
from tests.store.clock import Clock
from tests.store.cold_tier import (
    DAY,
    SPACE,
    chain,
    fetch,
    in_index,
    on_disk,
    opened,
    path_of,
    same,
    settle,
    write,
)

TURN = 10.0  # seconds between two tries to take over
REPOSITORY = Path(__file__).parents[2]

WRITER = """
import sys
from pathlib import Path
from omlx_server.store.files import Files
from omlx_server.store.lock import Lock
from tests.store.cold_tier import chain, opened, settle, write

root = Path(sys.argv[1])
lock = Lock(root)
assert lock.acquire()
with opened(Files(root), lock=lock) as tier:
    print("ready", flush=True)
    for line in sys.stdin:
        write(tier, *chain(int(line)))
        settle(tier)
        print("written", flush=True)
"""


class Writer:
    """Another process, which has the right to write."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        self._expect("ready")

    def write(self, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        self._expect("written")

    def end(self, *, kill: bool) -> None:
        if kill:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        assert kill or self.process.returncode == 0

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"


@dataclass
class Second:
    """A server that came second, while another process writes."""

    root: Path
    tier: ColdTier
    writer: Writer
    clock: Clock

    def take_over(self, *, kill: bool = False) -> None:
        """The other one ends, and this one has something to write."""
        self.writer.end(kill=kill)
        self.clock.now += TURN
        write(self.tier, *chain(1, tag=9))
        settle(self.tier)


@contextmanager
def second(root: Path, **options: Any) -> Iterator[Second]:
    writer = Writer(root)
    try:
        lock, clock = Lock(root), Clock()
        assert not lock.acquire()
        files = Files(root, writable=False)
        with opened(files, lock=lock, clock=clock, **options) as tier:
            yield Second(root, tier, writer, clock)
    finally:
        writer.process.kill()
        writer.process.communicate()


def snapshot(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


# -- the lock ----------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [False, True], ids=["closed", "killed"])
def test_who_came_second_reads_only_until_the_first_has_ended(tmp_path: Path, kill: bool) -> None:
    mine = chain(3, tag=1)
    with second(tmp_path) as server:
        tier = server.tier
        server.writer.write(3)
        before = snapshot(tmp_path)
        for _ in range(3):
            server.clock.now += TURN
            write(tier, *mine)
            settle(tier)
        assert snapshot(tmp_path) == before and tier.report().written == 0
        assert chain(1)[0].key not in tier.index, "it was written after this one had started"
        server.writer.end(kill=kill)
        for _ in range(2):
            write(tier, *mine)
            settle(tier)
        assert tier.report().written == 0, "it tries once in ten seconds"
        server.clock.now += TURN
        write(tier, *mine)
        settle(tier)
        write(tier, *mine)
        settle(tier)
        assert on_disk(tmp_path) == in_index(tier) == {r.key for r in (*mine, *chain(3))}
        for record in (*mine, *chain(3)):
            assert same(fetch(tier, record).packed, record)
        third = Lock(tmp_path)
        assert not third.acquire(), "two may write"


def test_what_the_first_one_wrote_counts_for_the_budget_of_the_second(tmp_path: Path) -> None:
    with second(tmp_path, budget=5 * 1500) as server:
        server.writer.write(10)
        server.take_over()
        assert on_disk(tmp_path) == in_index(server.tier)
        assert 0 < server.tier.index.nbytes <= 5 * 1500


def test_what_is_too_old_goes_when_the_second_takes_over(tmp_path: Path) -> None:
    with second(tmp_path, ttl_days=2.0) as server:
        server.writer.write(4)
        old = time.time() - 9 * DAY
        os.utime(path_of(tmp_path, chain(4)[3]), (old, old))
        server.take_over()
        settle(server.tier)
        assert on_disk(tmp_path) == in_index(server.tier) == {r.key for r in chain(3)}


def test_who_took_over_says_what_its_blocks_are_of(tmp_path: Path) -> None:
    with second(tmp_path) as server:
        server.tier.describe(SPACE, "a model", tmp_path, 4)
        server.take_over()
        write(server.tier, *chain(2))
        settle(server.tier)
        about = Files(tmp_path).describe(namespace_id(SPACE))
        assert about is not None and about.model == "a model"


def test_pins_made_while_another_one_wrote_are_saved_in_the_end(tmp_path: Path) -> None:
    pin = Pin("pin-1", SPACE, root_key(SPACE, b""), 1, 5.0, (chain(1)[0].key,))
    with second(tmp_path) as server:
        server.tier.index.pins.add(pin)
        server.tier.save_pins()
        server.take_over()
    with opened(Files(tmp_path)) as tier:
        assert list(tier.index.pins.all()) == [pin]


# -- the directory is removed ------------------------------------------------------------


def as_built(root: Path) -> tuple[Files, bytes]:
    """As a server makes it at its start."""
    key, files = load_secret(root), Files(root)
    files.remember_secret(key)
    return files, key


@contextmanager
def started(root: Path) -> Iterator[ColdTier]:
    files, key = as_built(root)
    tier = ColdTier(files, key, budget=1 << 30, queue_bytes=1 << 30)
    tier.describe(SPACE, "a model", root.parent, 4)
    tier.start()
    try:
        settle(tier)
        yield tier
    finally:
        tier.close(20)


@pytest.mark.parametrize(
    "starts",
    [1, 2],
)
def test_a_directory_that_was_removed_comes_back_whole(tmp_path: Path, starts: int) -> None:
    root, blocks = tmp_path / "kv", chain(4)
    pin = Pin("pin-1", SPACE, root_key(SPACE, b""), 1, 5.0, (blocks[0].key,))
    for _ in range(starts - 1):
        with started(root) as tier:
            tier.index.pins.add(pin)
            tier.save_pins()
    with started(root) as tier:
        if starts == 1:
            tier.index.pins.add(pin)
            tier.save_pins()
        write(tier, *blocks[:2])
        settle(tier)
        shutil.rmtree(root)
        write(tier, *blocks[2:])
        settle(tier)
        for record in blocks[2:]:
            assert same(fetch(tier, record).packed, record)
    with started(root) as tier:
        assert in_index(tier) == {record.key for record in blocks[2:]}
        for record in blocks[2:]:
            assert same(fetch(tier, record).packed, record), "the secret is another one"
        assert list(tier.index.pins.all()) == [pin]
    created = Files(root).describe(namespace_id(SPACE))
    assert created is not None and created.model == "a model"
    for path in root.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


# -- parts of it can't be read -----------------------------------------------------------


class Unreadable(FileOperations):
    """Some folders give an error instead of names."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths

    def scan(self, path: Path) -> list[os.DirEntry[str]]:
        if path in self.paths:
            raise OSError(errno.EIO, "planted")
        return super().scan(path)


@pytest.mark.parametrize("what", ["shard", "namespace", "root"])
def test_a_folder_that_can_not_be_read_hides_no_other(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine, others = chain(20), chain(5, "other")
    with opened(Files(tmp_path)) as tier:
        write(tier, *mine, *others)
    shard = path_of(tmp_path, mine[0]).parent
    path = {"shard": shard, "namespace": shard.parent, "root": tmp_path}[what]
    hidden = {record.key for record in mine if path_of(tmp_path, record).parent == shard}
    if what != "shard":
        hidden = {record.key for record in (*mine, *(others if what == "root" else ()))}
    with opened(Files(tmp_path, operations=Unreadable(path))) as tier:
        assert in_index(tier) == {record.key for record in (*mine, *others)} - hidden
        assert len(caplog.records) == 1, "one warning a minute"
        for record in mine:
            assert record.key in hidden or same(fetch(tier, record).packed, record)
        write(tier, mine[0])
        settle(tier)
        assert same(fetch(tier, mine[0]).packed, mine[0]), "what is there can be replaced"
    assert len(on_disk(tmp_path)) == 25
