"""The most recently used blocks of both tiers, for drawing. Pure; made in slices."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from omlx_server.core.blocks.block import Block
from omlx_server.core.blocks.keys import BlockKey, namespace_id
from omlx_server.core.blocks.record import RecordKind
from omlx_server.core.cold.index import ColdEntry
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.work import Work

_LOOKED = 4096  # blocks in one slice
_SHOWN = 512

N = TypeVar("N", Block, ColdEntry)


@dataclass(frozen=True, slots=True)
class MappedBlock:
    """Tokens [start, stop) after block `parent`. `nbytes` has its checkpoints; `idle`: seconds."""

    key: BlockKey
    parent: BlockKey | None
    start: int
    stop: int
    nbytes: int
    is_cold: bool
    pinned: bool
    in_use: bool
    idle: float | None
    has_checkpoint: bool


@dataclass(frozen=True, slots=True)
class BlockMap:
    """Blocks, parents first, and the number `left_out`."""

    blocks: tuple[MappedBlock, ...]
    left_out: int
    report: CacheReport
    block_tokens: int


def mapped(cache: PrefixCache, now: float, most: int) -> Work[BlockMap]:
    """Map at most `most` blocks, those used last with their ancestors, memory first."""
    hot = list(cache.index.blocks())
    shown_hot = yield from _newest_with_ancestors(hot, most, lambda block: block.parent)
    cold = yield from _cold_entries(cache)
    shown_cold = yield from _newest_with_ancestors(
        cold, most - len(shown_hot), lambda entry: _cold_parent(cache, entry)
    )
    blocks = list[MappedBlock]()
    for hot_slice in _slices(shown_hot, _SHOWN):
        # Blocks may have left between two slices.
        still_here = [block for block in hot_slice if cache.index.entry(block.id) is block]
        blocks += [_map_block(cache, block, now) for block in still_here]
        yield
    for cold_slice in _slices(shown_cold, _SHOWN):
        blocks += [_map_entry(cache, entry) for entry in cold_slice]
        yield
    left_out = len(hot) + len(cold) - len(shown_hot) - len(shown_cold)
    return BlockMap(tuple(blocks), left_out, cache.report(), cache.layout.block_size)


def _newest_with_ancestors(
    nodes: Sequence[N], most: int, parent_of: Callable[[N], N | None]
) -> Work[list[N]]:
    chosen: dict[int, N] = {}
    newest = yield from _newest(nodes, most)
    for node in newest:
        path: list[N] = []
        above: N | None = node
        while above is not None and not _is_root(above) and id(above) not in chosen:
            path.append(above)
            above = parent_of(above)
        for ancestor in path[::-1][: most - len(chosen)]:
            chosen[id(ancestor)] = ancestor
        if len(chosen) >= most:
            break
    return list(chosen.values())


def _newest(nodes: Sequence[N], most: int) -> Work[list[N]]:
    best, floor = list[N](), -1
    for piece in _slices(nodes, _LOOKED):
        best += [node for node in piece if node.used > floor]
        if len(best) > 2 * most:
            best = heapq.nlargest(most, best, key=lambda node: node.used)
            floor = best[-1].used if best else floor
        yield
    return heapq.nlargest(most, best, key=lambda node: node.used)


def _is_root(node: Block | ColdEntry) -> bool:
    return isinstance(node, Block) and node.parent is None


def _slices(nodes: Sequence[N], size: int) -> Iterable[Sequence[N]]:
    return (nodes[at : at + size] for at in range(0, len(nodes), size))


def _cold_entries(cache: PrefixCache) -> Work[list[ColdEntry]]:
    entries, namespace = list[ColdEntry](), namespace_id(cache.namespace)
    for piece in _slices(list(cache.cold.entries()) if cache.cold is not None else (), _LOOKED):
        entries += [entry for entry in piece if _is_cold_block(entry, namespace, cache)]
        yield
    return entries


def _is_cold_block(entry: ColdEntry, namespace: str, cache: PrefixCache) -> bool:
    is_block = entry.record is not None and entry.record.part is RecordKind.BLOCK
    return is_block and entry.namespace == namespace and entry.key not in cache.index


def _cold_parent(cache: PrefixCache, entry: ColdEntry) -> ColdEntry | None:
    record = entry.record
    if cache.cold is None or record is None or record.parent in cache.index:
        return None
    above = cache.cold.entry(record.parent)
    return above if above is not None and above.record is not None else None


def _map_block(cache: PrefixCache, block: Block, now: float) -> MappedBlock:
    above, checkpoints = block.parent, block.checkpoints.values()
    return MappedBlock(
        block.key,
        above.key if above is not None and above.parent is not None else None,
        block.start,
        block.stop,
        block.size.nbytes + sum(checkpoint.size.nbytes for checkpoint in checkpoints),
        is_cold=False,
        pinned=block.key in cache.pins,
        in_use=block.users > 0,
        idle=cache.index.order.idle_seconds(block, now),
        has_checkpoint=bool(checkpoints),
    )


def _map_entry(cache: PrefixCache, entry: ColdEntry) -> MappedBlock:
    record = entry.record
    assert record is not None
    return MappedBlock(
        entry.key,
        record.parent if record.start else None,
        record.start,
        record.stop,
        entry.nbytes,
        is_cold=True,
        pinned=entry.key in cache.pins,
        in_use=entry.leases > 0,
        idle=None,
        has_checkpoint=False,
    )
