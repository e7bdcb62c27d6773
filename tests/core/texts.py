"""Blocks of texts in a block index: a token is a letter, a block has four."""

from omlx_server.core.blocks.block import Block, CacheEntry, PayloadId, Size
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey, block_key, root_key
from tests.core.places import place

ROOT = root_key("model", b"")
SIZE = Size(10, 1)
STATE = Size(100, 2)


def tokens(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def store(index: BlockIndex, text: str, root: BlockKey = ROOT) -> list[PayloadId]:
    """Insert all blocks of a sequence; the ids of those that were new."""
    stops = [*range(4, len(text), 4), len(text)]
    ids = [index.insert(place(root, tokens(text)[:stop]), SIZE) for stop in stops]
    index.check_invariants()
    return [id for id in ids if id is not None]


def block(index: BlockIndex, text: str) -> Block:
    end = place(ROOT, tokens(text))
    block = index.block(block_key(end.parent, end.tokens))
    assert block is not None
    return block


def evict_block(index: BlockIndex) -> list[PayloadId]:
    """The block that goes first leaves, with its states: their ids."""
    return _evict(index, index.order.next_block())


def evict_state(index: BlockIndex) -> list[PayloadId]:
    """The state that goes first leaves: its id."""
    return _evict(index, index.order.next_checkpoint())


def _evict(index: BlockIndex, entry: CacheEntry | None) -> list[PayloadId]:
    gone = index.evict(entry) if entry is not None else []
    index.check_invariants()
    return [each.id for each in gone]
