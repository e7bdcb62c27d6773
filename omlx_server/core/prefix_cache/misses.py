"""Explains why a prompt was not restored in full. Pure."""

from collections import OrderedDict

from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey, block_key
from omlx_server.core.blocks.lookup import PrefixHandle, PrefixMatch
from omlx_server.core.request import Miss

_MOST_BEGINNINGS = 4096
_Beginning = tuple[bytes, BlockKey]  # an owner, and the key of a prompt's first block


class Misses:
    """Gives the reason of each miss. It remembers prompts per owner, so as to reveal none."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._roots: OrderedDict[_Beginning, BlockKey] = OrderedDict()

    def note(self, handle: PrefixHandle) -> None:
        self._roots[self._beginning(handle)] = handle.root
        if len(self._roots) > _MOST_BEGINNINGS:
            self._roots.popitem(last=False)

    def forget(self, root: BlockKey | None = None) -> None:
        others = [item for item in self._roots.items() if root is not None and item[1] != root]
        self._roots = OrderedDict(others)

    def reason(self, handle: PrefixHandle, prefix: PrefixMatch) -> Miss:
        depth = prefix.match.depth
        next_block = depth // self._index.block_size
        # The order matters: each reason holds only where those before it don't.
        if not handle.reuses:
            return Miss.UNREADABLE
        if prefix.cached >= len(handle.tokens):
            return Miss.NONE
        if handle.missed is not None:
            return handle.missed
        if depth > prefix.cached:
            return Miss.NO_CHECKPOINT
        if next_block < len(handle.keys) and self._index.was_evicted(handle.keys[next_block]):
            return Miss.EVICTED
        if depth:
            return Miss.DIVERGED
        elsewhere = self._roots.get(self._beginning(handle), handle.root)
        return Miss.NEW_PREFIX if elsewhere == handle.root else Miss.NAMESPACE

    def _beginning(self, handle: PrefixHandle) -> _Beginning:
        first = handle.tokens[: self._index.block_size]
        return handle.owner, block_key(BlockKey(b""), first)
