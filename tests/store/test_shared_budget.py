"""Three models share one directory and one budget: the limit holds at every moment, and whoever
talks on finds its blocks. Blocks are fakes of a few bytes; the thread and the files are real.
"""

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from omlx_server.core.blocks.keys import BlockKey, root_key
from omlx_server.core.blocks.record import Recalled, Record
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.mediums.disk import FileOperations
from tests.store.cold_tier import SOON, content, in_index, on_disk, opened, same

SPACES = ("one", "two", "three")
BLOCK = 20_000
FILE = BLOCK + 1000  # with its header; some have a little more
BUDGET = 40 * FILE
OVERFILL = 10
GROWTH = 2  # blocks in a turn
LONGEST = 12  # blocks of a conversation


class Watched(FileOperations):
    """Adds up the directory whenever a file has come, on the thread that changes it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.written = 0
        self.largest = 0
        self.peak = 0

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        nbytes = target.stat().st_size
        self.written += nbytes
        self.largest = max(self.largest, nbytes)
        self.peak = max(self.peak, all_bytes(self._root))

    def holds(self, budget: int) -> bool:
        """To one block."""
        return budget // 2 < self.peak <= budget + self.largest


def all_bytes(root: Path) -> int:
    """Of all files in the directories of namespaces, those that are being written as well."""
    return sum(
        file.stat().st_size
        for space in folders(root)
        for shard in folders(space)
        for file in os.scandir(shard)
    )


def folders(path: str | Path) -> list[str]:
    return [entry.path for entry in os.scandir(path) if entry.is_dir()]


class Model:
    """What the instance of one model asks of the tier: one conversation after the other."""

    def __init__(self, tier: ColdTier, space: str) -> None:
        self._tier = tier
        self._space = space
        self._begun = 0
        self.blocks: list[Record] = []

    def begin_turn(self) -> None:
        """The conversation goes on, or a new one begins: its blocks are asked for."""
        if len(self.blocks) >= LONGEST:
            self._begun += 1
            self.blocks = []
        ask(self._tier, self.blocks)

    def end_turn(self) -> None:
        """They have come; others are written."""
        assert come(self._tier, self._space, self.blocks)
        for _ in range(GROWTH):
            self._write()
        end = time.monotonic() + SOON
        while self._tier.is_full:
            assert time.monotonic() < end and not list(self._tier.poll(self._space))
            time.sleep(0.0005)

    def finds_all(self, tier: ColdTier) -> bool:
        """Whether the conversation comes back from a tier."""
        ask(tier, self.blocks)
        return come(tier, self._space, self.blocks)

    def _write(self) -> None:
        start = len(self.blocks)
        parent = self.blocks[-1].key if self.blocks else root_key(self._space, b"")
        record = Record(self._space, parent, start, (1000 * self._begun + start,))
        self._tier.write(record, lambda: content(record, BLOCK), BLOCK)
        self.blocks.append(record)


def ask(tier: ColdTier, records: Sequence[Record]) -> None:
    for record in records:
        tier.read(record, SOON)


def come(tier: ColdTier, space: str, records: Sequence[Record]) -> bool:
    """Whether all that was asked for comes, to the byte, and nothing of others."""
    came: dict[BlockKey, Recalled] = {}
    end = time.monotonic() + SOON
    while len(came) < len(records):
        assert time.monotonic() < end, "nobody answered"
        for event in tier.poll(space):
            assert isinstance(event, Recalled) and event.record.namespace == space
            came[event.record.key] = event
        time.sleep(0.0005)
    return all(same(came[record.key].packed, record, BLOCK) for record in records)


def orphans(tier: ColdTier) -> list[Record]:
    """Blocks without the one before them, which nobody can use."""
    known = [entry.record for entry in tier.index.entries() if entry.record is not None]
    return [record for record in known if record.start and record.parent not in tier.index]


def test_three_models_keep_to_one_budget_and_each_finds_its_own(tmp_path: Path) -> None:
    rng, disk = random.Random(1), Watched(tmp_path)
    files = Files(tmp_path, operations=disk)
    with opened(files, budget=BUDGET, queue_bytes=20 * BLOCK) as tier:
        models = [Model(tier, space) for space in SPACES]
        while disk.written < OVERFILL * BUDGET:
            order = rng.sample(models, len(models))
            for model in order:
                model.begin_turn()
            for model in order:
                model.end_turn()
        assert all(model.finds_all(tier) for model in models)
        assert not tier.report().dropped and not tier.report().failed
    assert disk.holds(BUDGET), disk.peak / BUDGET
    with opened(Files(tmp_path), budget=BUDGET) as again:
        assert on_disk(tmp_path) == in_index(again) and not orphans(again)
        assert all(model.finds_all(again) for model in models)


def test_a_burst_of_small_blocks_keeps_to_the_budget(tmp_path: Path) -> None:
    disk, budget = Watched(tmp_path), 30_000
    with opened(Files(tmp_path, operations=disk), budget=budget) as tier:
        for number in range(OVERFILL * 20):
            space = SPACES[number % 3]
            record = Record(space, root_key(space, b""), 0, (number,))
            packed = content(record, 1000)
            tier.write(record, lambda packed=packed: packed, 1000)  # type: ignore[misc]
    assert disk.holds(budget), disk.peak
