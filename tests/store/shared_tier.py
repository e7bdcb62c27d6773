"""Cold tiers that share a directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.core.blocks.record import Record
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.mediums.disk import FileOperations
from omlx_server.store.reads import Answered
from tests.store.cold_tier import (
    SECRET,
    SOON,
    SPACE,
    until,
)


@dataclass
class Server:
    """One of those that share a store."""

    store: Files
    tier: ColdTier

    def ask(self, *records: Record, id: int = 1, wait: float = SOON) -> None:
        self.tier.reads.ask(id, records, wait)

    def answers(self, space: str = SPACE) -> list[int]:
        """The questions that were answered, when at least one was."""
        found: list[int] = []

        def look() -> bool:
            events = self.tier.poll(space)
            found.extend(event.question for event in events if isinstance(event, Answered))
            return bool(found)

        until(look)
        return found


@contextmanager
def serving(
    root: Path, secret: bytes = SECRET, disk: FileOperations | None = None, **options: Any
) -> Iterator[Server]:
    store = Files(root / "store", operations=disk)
    options = {"budget": 1 << 30, "queue_bytes": 1 << 30, **options}
    tier = ColdTier(Files(root / "home"), secret, remote=store, **options)
    tier.start()
    try:
        yield Server(store, tier)
    finally:
        tier.close(SOON)
