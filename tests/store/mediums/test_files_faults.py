"""The N-th file operation fails, for every N, in every way; or is the last one before a crash.

Whatever happens: no read gives another content than one that was put, nothing but MediumError and
Corrupt is raised, and afterwards a scan finds exactly what can be read.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from omlx_server.core.blocks.keys import namespace_id, root_key
from omlx_server.core.blocks.record import PackedArrays, Record, RecordTensor
from omlx_server.store.block_file import Corrupt, decode, encode
from omlx_server.store.files import Files, NamespaceDescription
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import MediumError, Name
from omlx_server.store.secret import load_secret
from tests.store.faults import Crash, Fault, Faulty, Kind

SECRET = b"s" * 32
SPACE = "model"


def block(number: int, version: int = 0) -> tuple[Name, Record, PackedArrays]:
    record = Record(SPACE, root_key(SPACE, b""), 0, (number,), worth=version)
    data = random.Random(number * 100 + version).randbytes(64)
    packed = PackedArrays(
        [RecordTensor("U8", (64,), data), RecordTensor("F32", (1,), data[:4])], (((0, 1),),)
    )
    return Name(namespace_id(SPACE), record.key.hex()), record, packed


@dataclass
class Session:
    """Puts, gets and deletes, remembering what may be read under each name."""

    files: Files
    put: dict[Name, list[tuple[Record, list[bytes]]]] = field(default_factory=dict)
    refused: int = 0

    def run(self) -> None:
        for step in self.steps():
            try:
                step()
            except MediumError:
                self.refused += 1

    def steps(self) -> Iterator[Callable[[], object]]:
        files = self.files
        yield lambda: self.store(1)
        yield lambda: self.read(1)
        yield lambda: files.write_description(NamespaceDescription(SPACE, "m", "p", 4, 1.0))
        yield lambda: self.store(2)
        yield lambda: self.store(1, version=1)
        yield lambda: self.read(1)
        yield lambda: list(files.scan())
        yield lambda: files.delete(block(2)[0])
        yield lambda: self.read(2)
        yield lambda: files.touch(block(1)[0], 5.0)
        yield lambda: self.store(3)
        yield lambda: files.contains_many([block(1)[0], block(2)[0]])
        yield lambda: files.remove_leftovers()
        yield lambda: files.uses()
        yield lambda: self.read(3)
        yield lambda: files.record(block(3)[0])

    def store(self, number: int, version: int = 0) -> None:
        name, record, packed = block(number, version)
        contents = [bytes(tensor.data) for tensor in packed.tensors]
        self.put.setdefault(name, []).append((record, contents))
        self.files.put(name, encode(record, packed, SECRET))

    def read(self, number: int) -> None:
        self.check(block(number)[0], self.files)

    def check(self, name: Name, files: Files) -> bool:
        """Whether it can be read; then it is something that was put."""
        data = files.get(name)
        if data is None:
            return False
        try:
            record, packed = decode(data, SECRET, name)
        except Corrupt:
            files.delete(name)
            return False
        assert (record, [bytes(tensor.data) for tensor in packed.tensors]) in self.put[name]
        return True

    def check_after_restart(self, root: Path) -> None:
        """With working operations: what a scan finds is what can be read, and nothing else."""
        files = Files(root)
        found = [file.name for file in files.scan()]
        assert len(found) == len(set(found))
        readable = {name for name in [block(number)[0] for number in range(5)] if name in found}
        assert set(found) == readable
        usable = {name for name in readable if self.check(name, files)}
        assert {file.name for file in files.scan()} == usable
        assert {name for name in self.put if self.check(name, files)} == usable


ERRNOS = (
    *(errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES),
    *(errno.EMFILE, errno.ENOENT, errno.ELOOP),
)
KINDS = [
    *((Kind.BEFORE, code) for code in ERRNOS),
    *((Kind.AFTER, code) for code in (errno.EIO, errno.ENOENT)),
    *((Kind.SHORT, 0), (Kind.NOTHING, 0)),
]


def operations_of_a_session(root: Path) -> int:
    operations = Faulty(Fault(0, Kind.BEFORE))
    session = Session(Files(root, min_free_bytes=1, operations=operations))
    session.run()
    assert session.refused == 0
    return operations.count


@pytest.mark.parametrize(("kind", "code"), KINDS)
def test_any_operation_may_fail(tmp_path: Path, kind: Kind, code: int) -> None:
    count = operations_of_a_session(tmp_path / "whole")
    assert count > 60
    for at in range(1, count + 1):
        root = tmp_path / str(at)
        operations = Faulty(Fault(at, kind, code))
        session = Session(Files(root, min_free_bytes=1, operations=operations))
        session.run()
        assert session.refused <= 2
        assert not operations.leaked(), operations.hit
        leftovers = list(root.rglob(".tmp-*"))
        assert not leftovers or operations.hit == "open_new", operations.hit
        session.check_after_restart(root)


def test_a_short_read_or_write_is_no_failure(tmp_path: Path) -> None:
    for at in range(1, operations_of_a_session(tmp_path / "whole") + 1):
        session = Session(
            Files(tmp_path / str(at), operations=Faulty(Fault(at, Kind.SHORT))),
        )
        session.run()
        assert session.refused == 0
        assert session.check(block(1)[0], session.files)
        assert session.check(block(3)[0], session.files)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "full"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "read-only"),
        (errno.EPERM, "read-only"),
        (errno.EIO, "io"),
        (errno.EMFILE, "io"),
    ],
)
def test_a_put_says_why_it_failed_and_works_again(tmp_path: Path, code: int, reason: str) -> None:
    """The first put makes two directories; the second opens, writes twice, closes and renames."""
    name, record, packed = block(1)
    parts = encode(record, packed, SECRET)
    for at in range(1, 20):
        operations = Faulty(Fault(at, Kind.BEFORE, code))
        files = Files(tmp_path / str(at), operations=operations)
        try:
            files.put(name, parts)
        except MediumError as error:
            assert error.reason == reason
            assert files.get(name) is None
            files.put(name, parts)
        done = operations.count < at
        assert Files(tmp_path / str(at)).get(name) == b"".join(parts)
        if done:
            break
    else:
        raise AssertionError("a put takes more operations than were tried")
    assert at > 8


# Crashes


class CrashingDisk(Faulty):
    """Nothing was synced: at a crash, every rename may be undone, and every file torn."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self._renamed: list[tuple[Path, bytes | None]] = []

    def replace(self, source: Path, target: Path) -> None:
        old = target.read_bytes() if target.exists() else None
        super().replace(source, target)
        self._renamed.append((target, old))

    def lose_unsynced(self, rng: random.Random) -> None:
        for target, old in reversed(self._renamed):
            match rng.randrange(5):
                case 0 if old is None:
                    target.unlink(missing_ok=True)
                case 0 if old is not None:
                    target.write_bytes(old)
                case 1 if target.exists():
                    os.truncate(target, rng.randrange(target.stat().st_size + 1))
                case 2 if target.exists():
                    _zero(target, rng)


def _zero(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    start = rng.randrange(len(data) + 1)
    stop = rng.randrange(start, len(data) + 1)
    path.write_bytes(data[:start] + bytes(stop - start) + data[stop:])


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_operation_loses_blocks_at_most(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    count = operations_of_a_session(tmp_path / "whole")
    for at in range(1, count + 1):
        root = tmp_path / str(at)
        disk = CrashingDisk(Fault(at, Kind.CRASH))
        session = Session(Files(root, min_free_bytes=1, operations=disk))
        with pytest.raises(Crash):
            session.run()
        disk.lose_unsynced(rng)
        session.check_after_restart(root)
        again = Session(Files(root), put=session.put)
        again.run()
        assert again.refused == 0
        assert again.check(block(1)[0], again.files) and again.check(block(3)[0], again.files)


# The lock and the secret


@pytest.mark.parametrize(("kind", "code"), [*KINDS, (Kind.CRASH, 0)])
def test_the_lock_and_the_secret_survive_any_failure(tmp_path: Path, kind: Kind, code: int) -> None:
    for at in range(1, 30):
        root = tmp_path / str(at) / "kv"
        operations = Faulty(Fault(at, kind, code))
        lock = Lock(root, operations)
        told = []
        try:
            lock.acquire()
            told.append(load_secret(root, operations))
            lock.release()
        except (MediumError, Crash):
            pass
        done = operations.count < at
        if not done and kind is not Kind.CRASH and operations.leaked():
            lock.release()
        assert kind is Kind.CRASH or not operations.leaked(), operations.hit
        known = load_secret(root)
        assert len(known) == 32 and told in ([], [known])
        second = Lock(root)
        assert second.acquire()
        second.release()
        if done:
            return
    raise AssertionError("it takes more operations than were tried")
