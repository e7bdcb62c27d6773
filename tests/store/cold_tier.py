"""Cold tiers in a directory of a test, and blocks in them."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.record import PackedArrays, Recalled, Record, RecordTensor
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.mediums.disk import FileOperations
from omlx_server.store.mediums.medium import Name
from tests.core.cold.chains import check_cold_index

SECRET = b"s" * 32
SPACE = "model"
DATA = 1000
SOON = 20.0  # seconds that a busy machine may take
DAY = 86_400.0


def chain(count: int, space: str = SPACE, tag: int = 0) -> list[Record]:
    """Blocks of one sequence, of one token each."""
    records, parent = [], root_key(space, b"")
    for number in range(count):
        records.append(Record(space, parent, number, (1000 * tag + number,)))
        parent = records[-1].key
    return records


def content(record: Record, size: int = DATA) -> PackedArrays:
    data = random.Random(record.key).randbytes(size)
    return PackedArrays((RecordTensor("U8", (size,), data),), (((0, 0),),))


def same(packed: PackedArrays | None, record: Record, size: int = DATA) -> bool:
    return packed is not None and [bytes(t.data) for t in packed.tensors] == [
        bytes(t.data) for t in content(record, size).tensors
    ]


def name_of(record: Record) -> Name:
    return Name(namespace_id(record.namespace), record.key.hex())


def path_of(root: Path, record: Record) -> Path:
    name = name_of(record)
    return root / name.namespace / name.key[:2] / f"{name.key}.safetensors"


def on_disk(root: Path) -> set[BlockKey]:
    return {BlockKey(bytes.fromhex(found.name.key)) for found in Files(root).scan()}


def in_index(tier: ColdTier) -> set[BlockKey]:
    return {entry.key for entry in tier.index.entries()}


def polled(tier: ColdTier) -> Iterator[Recalled]:
    for event in tier.poll(SPACE):
        assert isinstance(event, Recalled)
        yield event


@contextmanager
def opened(medium: Files, *, settled: bool = True, **options: Any) -> Iterator[ColdTier]:
    tier = ColdTier(medium, SECRET, **{"budget": 1 << 30, "queue_bytes": 1 << 30, **options})
    tier.start()
    try:
        if settled:
            settle(tier)
        yield tier
    finally:
        tier.close(SOON)


def write(tier: ColdTier, *records: Record, size: int = DATA) -> None:
    for record in records:
        tier.write(record, lambda record=record: content(record, size), size)  # type: ignore[misc]


def settle(tier: ColdTier) -> list[Recalled]:
    """Until the thread has done all that it was asked to."""
    came: list[Recalled] = []
    end = time.monotonic() + SOON
    quiet = 0
    while quiet < 2:
        assert time.monotonic() < end and tier._worker.is_alive()
        idle = tier._worker.drain(SOON) and not tier._worker._later and not tier._worker._read_queue
        came += polled(tier)
        busy = not idle or tier.reads.waiting or tier.report().queued
        quiet = 0 if busy or tier._worker._changes or tier._worker._busy else quiet + 1
    check_cold_index(tier.index)
    return came


def fetch(tier: ColdTier, record: Record, patience: float = SOON) -> Recalled:
    """Read one block and wait for the answer."""
    tier.read(record, patience)
    end = time.monotonic() + patience + SOON
    while time.monotonic() < end:
        for recalled in polled(tier):
            if recalled.record.key == record.key:
                return recalled
        time.sleep(0.0005)
    raise AssertionError("nobody answered")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.0005)


class Gate(FileOperations):
    """A disk that hangs while the gate is shut, at operations of these names."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.open = threading.Event()
        self.open.set()
        self.hanging = threading.Event()
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name not in vars(FileOperations):
            return found

        def gated(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            if name in self._names and not self.open.is_set():
                self.hanging.set()
                self.open.wait(SOON)
            return found(*args, **options)

        return gated


@contextmanager
def hanging(root: Path, *names: str, **options: Any) -> Iterator[tuple[ColdTier, Gate]]:
    gate = Gate(*names)
    with opened(Files(root, operations=gate), **options) as tier:
        try:
            yield tier, gate
        finally:
            gate.open.set()
