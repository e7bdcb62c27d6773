"""The hot tier: payloads in memory, as they are, by the ids of the block index.

Owned by the mlx thread. It decides nothing: what is kept and what goes is the index's word.
"""

from typing import Generic, TypeVar

from omlx_server.core.blocks.block import PayloadId

P = TypeVar("P")


class HotTier(Generic[P]):
    """A payload is opaque here; it is dropped by dropping the last reference to it."""

    def __init__(self) -> None:
        self._payloads: dict[PayloadId, P] = {}

    def __len__(self) -> int:
        return len(self._payloads)

    def __contains__(self, id: object) -> bool:
        return id in self._payloads

    def put(self, id: PayloadId, payload: P) -> None:
        """Keep a payload. An id names one payload for ever."""
        if id in self._payloads:
            raise KeyError(f"payload {id} is here already")
        self._payloads[id] = payload

    def get(self, id: PayloadId) -> P:
        """Raises KeyError when the payload is not here."""
        return self._payloads[id]

    def drop(self, id: PayloadId) -> None:
        """Forget a payload."""
        del self._payloads[id]

    def clear(self) -> None:
        self._payloads.clear()
