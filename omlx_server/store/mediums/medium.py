"""The interface of the stores for the cold tier's bytes. Calls block. I/O thread."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from omlx_server.core.blocks.keys import BlockKey

Buffer = bytes | memoryview
# The most bytes of one block in a remote store: the limit of Redis.
REMOTE_MAX_BYTES = 512 * 1024 * 1024


class Name(NamedTuple):
    """A block's namespace id (16 hex digits) and key (64 hex digits)."""

    namespace: str
    key: str

    @classmethod
    def of(cls, namespace: str, key: BlockKey) -> "Name":
        return cls(namespace, key.hex())

    @property
    def block_key(self) -> BlockKey:
        return BlockKey(bytes.fromhex(self.key))


class MediumError(Exception):
    """`reason` is one word for counters: full, read-only, io, timeout, unreachable, too-large,
    or format for a block that can't be encoded."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def nbytes_of(parts: Iterable[Buffer]) -> int:
    return sum(memoryview(part).nbytes for part in parts)


def require_fits(nbytes: int, limit: int) -> None:
    if nbytes > limit:
        raise MediumError("too-large", f"a block of {nbytes} bytes, the limit is {limit}")


class Medium(Protocol):
    """A store of bytes by name. A call that fails raises MediumError only."""

    def get(self, name: Name) -> bytes | None: ...
    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        """Store the parts as one content; a reader sees all of it or nothing."""

    def contains_many(self, names: Iterable[Name]) -> set[Name]: ...
    def delete(self, name: Name) -> None: ...
    def close(self) -> None: ...
