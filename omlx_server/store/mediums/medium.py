"""Where the cold tier keeps its bytes. Files by default; any store of bytes by the same few calls.

All calls block and belong to the I/O thread. None of them interprets what it keeps: `store/format`
does, and trusts nothing that comes back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from omlx_server.core.blocks.keys import BlockKey

Buffer = bytes | memoryview
# Of one block in a remote store: what Redis takes at most.
REMOTE_MAX_BYTES = 512 * 1024 * 1024


class Name(NamedTuple):
    """Where a block is: the namespace's id (16 hex digits) and its key (64 hex digits)."""

    namespace: str
    key: str

    @classmethod
    def of(cls, namespace: str, key: BlockKey) -> "Name":
        """`namespace` is its id."""
        return cls(namespace, key.hex())

    @property
    def block_key(self) -> BlockKey:
        return BlockKey(bytes.fromhex(self.key))


@dataclass(frozen=True, slots=True)
class MediumStats:
    """How much is there, as far as the medium knows; None where it can't tell."""

    count: int | None
    nbytes: int | None


class MediumError(Exception):
    """An operation did not work. `reason` is one word for counters: full, read-only, io, timeout,
    unreachable, too-large."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def require_fits(nbytes: int, limit: int) -> None:
    """Raises MediumError for a block that a medium does not take."""
    if nbytes > limit:
        raise MediumError("too-large", f"a block of {nbytes} bytes, the limit is {limit}")


class Medium(Protocol):
    """Raises MediumError, and nothing else, when it can't do what it is asked to do."""

    def get(self, name: Name) -> bytes | None:
        """The whole content, or None when it is not there."""

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        """Keep these parts, one behind the other. Whoever reads sees all of it or nothing."""

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        """Those of the names that are there."""

    def delete(self, name: Name) -> None:
        """Forget one; nothing happens when it is not there."""

    def stats(self) -> MediumStats: ...

    def close(self) -> None: ...
