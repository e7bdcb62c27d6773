"""The processes that compute one model together, as the rest of the engine sees them. Pure."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Recalled, Record
from omlx_server.core.crash import Crash
from omlx_server.core.memory.kv import Decode, PrefillShape
from omlx_server.core.step import Chunk, SequenceId, Step

T = TypeVar("T")


class Ranks:
    """One process that computes its model alone. Of several (`compute/cluster/ranks.py`) rank 0
    tells the others before it does one of these things itself."""

    rank = 0
    size = 1
    leads = True
    are_several = False

    def shared(self, tokens: T) -> T:
        """Return rank 0's tokens on every rank."""
        return tokens

    def most(self, number: int) -> int:
        """Return the largest number of all ranks, which must all call it. Waits."""
        return number

    def has_lost_one(self, error: Exception) -> bool:
        """Return whether an error says that another rank is gone."""
        return False

    # Steps:

    def decode(self, step: Step, drafts: Mapping[SequenceId, tuple[int, ...]]) -> None: ...

    # For each row: how many drafted tokens were right, and its newest token.
    def accept(self, right: Sequence[int], newest: Sequence[int]) -> None: ...

    def prefill(self, step: Step, chunks: Sequence[Chunk]) -> None: ...

    def reset(self, *, blocks: bool = False) -> None:
        """Forget all rows and prefills, and with `blocks` all payloads."""

    def fail(self, crash: Crash) -> str:
        """Give up after a failed step. Return why requests end."""
        return crash.summary

    # Other forwards:

    def feed_one_token(self) -> None: ...

    def feed(self, tokens: int) -> None:
        """Run a forward over this many tokens with empty caches."""

    def probe(
        self, kind: str, prefill: PrefillShape | None = None, decode: Decode | None = None
    ) -> None: ...

    def score(self, job: int, tokens: Sequence[int]) -> None:
        """Feed the next slice of a prompt; an empty one ends the job."""

    # Blocks, and the cold tier:

    def keep(self, cut: int, block: PayloadId | None, checkpoint: PayloadId | None) -> None:
        """Keep the payloads of the cut with this number under these ids."""

    def drop(self, ids: Sequence[PayloadId]) -> None: ...

    def tidy(self, *, wholly: bool) -> None: ...

    def write(self, id: PayloadId, record: Record) -> None: ...

    def read(self, record: Record, patience: float) -> None: ...

    def takes(self, recalled: Recalled) -> bool:
        """Return whether what this rank has read waits for the other ranks."""
        return False

    def complete_reads(self) -> Sequence[tuple[int, Recalled]]:
        """Return the reads, by number, that all ranks have newly ended."""
        return ()

    def promote(self, read: int, id: PayloadId | None) -> None:
        """Keep what a read gave under this id, or drop it."""

    def clear(self, keys: Sequence[BlockKey] | None) -> None:
        """Forget the model's blocks, or these keys and their descendants."""

    def clear_all(self) -> None:
        """Forget the blocks of all models."""


ALONE = Ranks()
NOT_ON_EVERY_RANK = "not on every rank"
"""Reason for a miss where another rank has lost its part."""
