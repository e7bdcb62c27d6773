"""Places in a sequence, by all its tokens up to there."""

from collections.abc import Sequence

from omlx_server.core.blocks.block import BlockPlace
from omlx_server.core.blocks.keys import BlockKey, chain


def place(root: BlockKey, tokens: Sequence[int], size: int = 4) -> BlockPlace:
    """The place of the last block of `tokens`, of which `size` make a block."""
    start = (len(tokens) - 1) // size * size
    keys = chain(root, tokens[:start], size)
    return BlockPlace(keys[-1] if keys else root, start, tuple(tokens[start:]))
