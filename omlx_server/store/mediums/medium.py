"""The interface of whatever keeps the cold tier's bytes: files by default, or any other store.

All calls block and belong to the I/O thread. No medium interprets what it keeps:
`store/block_file.py` does, and trusts nothing that comes back.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from omlx_server.core.blocks.keys import BlockKey

Buffer = bytes | memoryview
# The most bytes of one block in a remote store: the limit of Redis.
REMOTE_MAX_BYTES = 512 * 1024 * 1024


class Name(NamedTuple):
    """Where a block is: the namespace's id (16 hex digits) and its key (64 hex digits)."""

    namespace: str
    key: str

    @classmethod
    def of(cls, namespace: str, key: BlockKey) -> "Name":
        """The name of a block by its namespace's id and its key."""
        return cls(namespace, key.hex())

    @property
    def block_key(self) -> BlockKey:
        return BlockKey(bytes.fromhex(self.key))


class MediumError(Exception):
    """An operation did not work. `reason` is one word for counters: full, read-only, io, timeout,
    unreachable, too-large, or format for a block that can't be encoded."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def require_fits(nbytes: int, limit: int) -> None:
    """Raises MediumError for a block of more than `limit` bytes."""
    if nbytes > limit:
        raise MediumError("too-large", f"a block of {nbytes} bytes, the limit is {limit}")


class Medium(Protocol):
    """A store of bytes by name. A call raises MediumError, and nothing else, when it can't do what
    it is asked to do."""

    def get(self, name: Name) -> bytes | None:
        """The whole content, or None when there is none of that name."""

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        """Keep these parts as one content, one behind the other. A reader sees all of it or
        nothing."""

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        """Which of the names are there."""

    def delete(self, name: Name) -> None:
        """Delete one content. Nothing happens when it is not there."""

    def close(self) -> None: ...
