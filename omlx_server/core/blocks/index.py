"""The blocks in memory, as one tree per root (namespace and salt). Pure.

A short block is the tail of a sequence, has no children, and is replaced by a block that begins
with its tokens. Invariants: a parent is here as long as its children; what is leased or used is
never evicted; bytes and buffers are the sums over what is here.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from omlx_server.core.blocks.block import (
    Block,
    BlockPlace,
    CacheEntry,
    Checkpoint,
    Match,
    PayloadId,
    Size,
    Worth,
)
from omlx_server.core.blocks.eviction_order import HotOrder
from omlx_server.core.blocks.keys import BlockKey, block_key, shared

# Evicted blocks that are remembered, to explain misses.
_MOST_GHOSTS = 65_536


class BlockIndex:
    """The trees, and the totals of what is in them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.nbytes = 0
        self.checkpoint_bytes = 0
        self.buffers = 0
        self.in_use = 0  # bytes of blocks with users
        self._roots: dict[BlockKey, Block] = {}
        self._blocks: dict[PayloadId, Block] = {}
        self._by_key: dict[BlockKey, Block] = {}
        self._checkpoints: dict[PayloadId, Checkpoint] = {}
        self._replaced: list[PayloadId] = []  # by longer blocks
        self._leased: set[CacheEntry] = set()
        self._ghosts: OrderedDict[BlockKey, None] = OrderedDict()  # evicted blocks
        self._next_id = 0
        self.order = HotOrder(self._blocks, self._checkpoints)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def checkpoint_count(self) -> int:
        return len(self._checkpoints)

    def match(self, root: BlockKey, tokens: Sequence[int]) -> Match:
        """Return the longest known prefix. Does not modify."""
        node = self._roots.get(root)
        blocks: list[Block] = []
        while node is not None:
            start = node.stop
            child = node.children.get(tuple(tokens[start : start + self.block_size]))
            if child is None or len(child.tokens) < self.block_size:
                partial, length = _closest_child(node, tokens, start)
                return Match(tuple(blocks), partial, length)
            blocks.append(child)
            node = child
        return Match(())

    def root(self, key: BlockKey) -> Block | None:
        return self._roots.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def touch(self, entry: CacheEntry) -> None:
        block = entry if isinstance(entry, Block) else entry.block
        self.order.touch(block.id)
        entry.used = block.used

    def blocks(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def insert(self, place: BlockPlace, size: Size) -> PayloadId | None:
        """Return a block's id; None when it is covered, or its parent is not here."""
        parent = self._by_key.get(place.parent) if place.start else self._root_block(place.parent)
        if parent is None or parent.stop != place.start or len(place.tokens) > self.block_size:
            return None
        siblings = parent.by_first.get(place.tokens[0], ())
        covering = [block for block in siblings if block.begins_with(place.tokens)]
        if covering:
            self.touch(max(covering, key=lambda block: len(block.tokens)))
            return None
        key = block_key(parent.key, place.tokens)
        block = Block(self._new_id(), key, parent, place.start, place.tokens, size)
        self._attach(block)
        self._replace_short_ones(block)
        self.touch(block)
        return block.id

    def entry(self, id: PayloadId) -> CacheEntry | None:
        return self._blocks.get(id) or self._checkpoints.get(id)

    def block(self, key: BlockKey) -> Block | None:
        return self._by_key.get(key)

    def by_depth(self, root: BlockKey | None = None) -> list[CacheEntry]:
        """Return all blocks (of a root), parents first, then their checkpoints."""
        members = self._blocks.values() if root is None else self._blocks_of_root(root)
        blocks = sorted(members, key=lambda block: block.start)
        return [*blocks, *(c for block in blocks for c in block.checkpoints.values())]

    def add_checkpoint(self, place: BlockPlace, size: Size, worth: Worth) -> PayloadId | None:
        """Return its id; None when it is known, or no block reaches it."""
        above = self._by_key.get(place.parent) if place.start else self._roots.get(place.parent)
        if above is None or above.stop != place.start:
            return None
        block, length = _closest_child(above, place.tokens, 0)
        if block is None or length < len(place.tokens):
            return None
        position = place.start + length
        checkpoint = block.checkpoints.get(position)
        if checkpoint is not None:
            checkpoint.worth = max(checkpoint.worth, worth)
            self.touch(checkpoint)
            return None
        if worth is Worth.NEWEST:
            self._supersede_before(block, position)
        now = self.order.tick()
        checkpoint = Checkpoint(self._new_id(), block, position, size, worth, used=now)
        block.checkpoints[position] = checkpoint
        self._checkpoints[checkpoint.id] = checkpoint
        self._count(size, +1)
        self.checkpoint_bytes += size.nbytes
        return checkpoint.id

    def lease(self, entry: CacheEntry) -> None:
        entry.leases += 1
        self._leased.add(entry)

    def release(self, entry: CacheEntry) -> None:
        """Undo one `lease`. Raises ValueError when there is none."""
        entry.leases -= 1
        if entry.leases < 0:
            raise ValueError("released more often than leased")
        if not entry.leases:
            self._leased.discard(entry)
        self.order.note(entry.id if isinstance(entry, Block) else entry.block.id)

    def leased_bytes(self) -> int:
        blocks = set[Block]()
        for leased in self._leased:
            block = leased.block if isinstance(leased, Checkpoint) else leased
            while block.parent is not None and block not in blocks:
                blocks.add(block)
                block = block.parent
        checkpoints = (one.size for one in self._leased if isinstance(one, Checkpoint))
        sizes = (*checkpoints, *(block.size for block in blocks if not block.users))
        return sum(size.nbytes for size in sizes)

    def use(self, block: Block) -> None:
        block.users += 1
        if block.users == 1:
            self.in_use += block.size.nbytes

    def unuse(self, block: Block) -> None:
        if self._blocks.get(block.id) is not block:
            return  # it was removed as lost
        block.users -= 1
        if not block.users:
            self.in_use -= block.size.nbytes
            self.order.note(block.id)

    @property
    def idle_bytes(self) -> int:
        return self.nbytes - self.in_use

    def remove(self, ids: Iterable[PayloadId]) -> list[PayloadId]:
        """Remove lost payloads, and all descendants of lost blocks. Returns the ids."""
        ids, removed = list(ids), list[PayloadId]()
        for checkpoint in [self._checkpoints[id] for id in ids if id in self._checkpoints]:
            self._detach_checkpoint(checkpoint)
            removed.append(checkpoint.id)
        todo = [self._blocks[id] for id in ids if id in self._blocks]
        lost = dict[Block, None]()
        while todo:
            block = todo.pop()
            lost[block] = None
            todo += block.children.values()
        for block in sorted(lost, key=lambda block: -block.start):
            removed += self._detach(block)
        return removed

    def evict(self, entry: CacheEntry) -> list[CacheEntry]:
        """Remove a block with its checkpoints, or a checkpoint. Returns what went."""
        if isinstance(entry, Checkpoint):
            self._detach_checkpoint(entry)
            return [entry]
        self._ghosts[entry.key] = None
        if len(self._ghosts) > _MOST_GHOSTS:
            self._ghosts.popitem(last=False)
        removed: list[CacheEntry] = [entry, *entry.checkpoints.values()]
        self._detach(entry)
        return removed

    def was_evicted(self, key: BlockKey) -> bool:
        return key in self._ghosts

    def take_replaced(self) -> list[PayloadId]:
        removed, self._replaced = self._replaced, []
        return removed

    def clear(self, root: BlockKey | None = None) -> list[PayloadId]:
        """Drop what is neither leased nor used. Returns the ids."""
        removed: list[PayloadId] = []
        members = self._blocks.values() if root is None else self._blocks_of_root(root)
        for block in sorted(members, key=lambda block: -block.start):
            if block.evictable:
                removed += self._detach(block)
        if root is None:
            self._ghosts.clear()
        return removed

    def check_invariants(self) -> None:
        sizes = [b.size for b in self._blocks.values()]
        checkpoints = [c.size for c in self._checkpoints.values()]
        assert self.nbytes == sum(s.nbytes for s in (*sizes, *checkpoints))
        assert self.buffers == sum(s.buffers for s in (*sizes, *checkpoints))
        assert self.checkpoint_bytes == sum(s.nbytes for s in checkpoints)
        assert self.in_use == sum(b.size.nbytes for b in self._blocks.values() if b.users)
        entries: list[CacheEntry] = [*self._blocks.values(), *self._checkpoints.values()]
        assert all((one in self._leased) == (one.leases > 0) for one in entries)
        for block in self._blocks.values():
            assert block.parent is not None and block.leases >= 0 and block.users >= 0
            assert block.parent.children[block.tokens] is block
            assert block.parent.id in self._blocks or block.parent in self._roots.values()
            full = len(block.tokens) == self.block_size
            assert full or not block.children, "a short block has children"
            assert block.start % self.block_size == 0
            for position, checkpoint in block.checkpoints.items():
                assert self._checkpoints[checkpoint.id] is checkpoint
                assert checkpoint.block is block and checkpoint.position == position
                assert block.start < position <= block.stop
        assert sum(len(b.checkpoints) for b in self._blocks.values()) == len(self._checkpoints)

    def _blocks_of_root(self, root: BlockKey) -> Iterator[Block]:
        top = self._roots.get(root)
        todo = list(top.children.values()) if top is not None else []
        while todo:
            block = todo.pop()
            todo += block.children.values()
            yield block

    def _new_id(self) -> PayloadId:
        self._next_id += 1
        return PayloadId(self._next_id)

    def _root_block(self, key: BlockKey) -> Block:
        return self._roots.setdefault(key, Block(PayloadId(0), key, None, 0, (), Size(0, 0)))

    def _attach(self, block: Block) -> None:
        assert block.parent is not None
        block.parent.children[block.tokens] = block
        block.parent.by_first.setdefault(block.tokens[0], []).append(block)
        self._blocks[block.id] = block
        self._by_key[block.key] = block
        self._count(block.size, +1)

    def _detach(self, block: Block) -> list[PayloadId]:
        removed = [block.id]
        for checkpoint in list(block.checkpoints.values()):
            self._detach_checkpoint(checkpoint)
            removed.append(checkpoint.id)
        parent = block.parent
        assert parent is not None
        del parent.children[block.tokens], self._blocks[block.id], self._by_key[block.key]
        siblings = parent.by_first[block.tokens[0]]
        siblings.remove(block)
        if not siblings:
            del parent.by_first[block.tokens[0]]
        self._count(block.size, -1)
        self.in_use -= block.size.nbytes if block.users else 0
        self.order.lost_child(parent.id, block)
        if parent.parent is None and not parent.children:
            del self._roots[parent.key]
        return removed

    def _replace_short_ones(self, block: Block) -> None:
        assert block.parent is not None
        for sibling in list(block.parent.by_first[block.tokens[0]]):
            if sibling is block or not block.begins_with(sibling.tokens):
                continue
            for position, checkpoint in sibling.checkpoints.items():
                checkpoint.block = block
                block.checkpoints[position] = checkpoint
            sibling.checkpoints = {}
            if sibling.leases:
                self.order.put_first(sibling.id)
            else:
                self._replaced += self._detach(sibling)

    def _detach_checkpoint(self, checkpoint: Checkpoint) -> None:
        del self._checkpoints[checkpoint.id]
        del checkpoint.block.checkpoints[checkpoint.position]
        self._count(checkpoint.size, -1)
        self.checkpoint_bytes -= checkpoint.size.nbytes

    def _supersede_before(self, block: Block, position: int) -> None:
        node: Block | None = block
        while node is not None:
            for checkpoint in node.checkpoints.values():
                if checkpoint.worth is Worth.NEWEST and checkpoint.position < position:
                    checkpoint.worth = Worth.SUPERSEDED
            node = node.parent

    def _count(self, size: Size, sign: int) -> None:
        self.nbytes += sign * size.nbytes
        self.buffers += sign * size.buffers


def _closest_child(node: Block, tokens: Sequence[int], start: int) -> tuple[Block | None, int]:
    # Returns the child that shares most of the tokens at `start`, and how many.
    if start >= len(tokens):
        return None, 0
    best, best_score = None, (0, 0)  # of equal ones the longest
    for child in node.by_first.get(tokens[start], ()):
        length = len(child.tokens)
        score = shared(child.tokens, tokens[start : start + length]), length
        if score > best_score:
            best, best_score = child, score
    return best, best_score[0]
