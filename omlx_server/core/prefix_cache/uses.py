"""Tracks the blocks that running sequences use, which can't be evicted. Pure."""

from collections.abc import Sequence

from omlx_server.core.blocks.block import Block, PayloadId
from omlx_server.core.blocks.cache_layout import CacheLayout
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.lookup import BlocksInUse
from omlx_server.core.blocks.restore import PrefixMatch
from omlx_server.core.prefix_cache.eviction import Eviction


class Uses:
    """Counts the users of blocks as sequences begin, fork, go on and end."""

    def __init__(self, index: BlockIndex, layout: CacheLayout, eviction: Eviction) -> None:
        self._index = index
        self._layout = layout
        self._eviction = eviction

    def begin(self, prefix: PrefixMatch) -> BlocksInUse:
        return self.share(BlocksInUse([*self._full(prefix, prefix.cached)]))

    def extend(self, blocks: BlocksInUse, id: PayloadId | None) -> None:
        """Note that a sequence refers to the block it made, if full and after its others."""
        block = self._index.entry(id) if id is not None else None
        if not isinstance(block, Block) or not (blocks.at_work and self._layout.refers):
            return
        if block.start == blocks.tokens and len(block.tokens) == self._layout.block_size:
            self._index.use(block)
            blocks.path.append(block)

    def share(self, blocks: BlocksInUse) -> BlocksInUse:
        for block in blocks.path:
            self._index.use(block)
        copied = max(blocks.copied, self._copied(blocks.tokens))
        return BlocksInUse(blocks.path.copy(), at_work=True, copied=copied)

    def end(self, blocks: BlocksInUse) -> None:
        path, blocks.path, blocks.at_work = blocks.path, [], False
        for block in reversed(path):
            self._index.unuse(block)
        if path:
            self._eviction.shrink()

    def of_restore(self, prefix: PrefixMatch, tokens: int) -> tuple[int, int]:
        """Return the tokens that a restore would refer to, and their unused bytes."""
        path = self._full(prefix, tokens)
        nbytes = sum(block.size.nbytes for block in path if not block.users)
        used = len(path) * self._layout.block_size
        return used - self._copied(used), nbytes

    def _full(self, prefix: PrefixMatch, tokens: int) -> Sequence[Block]:
        count = min(tokens, prefix.cached) // self._layout.block_size
        return prefix.match.blocks[:count] if self._layout.refers else ()

    def _copied(self, tokens: int) -> int:
        return tokens if tokens <= self._layout.copies else 0
