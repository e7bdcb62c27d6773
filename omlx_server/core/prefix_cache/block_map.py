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
    """Tokens [start, stop) after the block with key `parent`. `nbytes` includes checkpoints; `idle`
    is in seconds."""

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
    chosen = yield from _chosen(hot, most, lambda block: block.parent)
    cold = yield from _cold_entries(cache)
    more = yield from _chosen(cold, most - len(chosen), lambda entry: _cold_parent(cache, entry))
    blocks = list[MappedBlock]()
    for part in _parts(chosen, _SHOWN):
        here = [block for block in part if cache.index.entry(block.id) is block]
        blocks += [_of_block(cache, block, now) for block in here]
        yield
    for entries in _parts(more, _SHOWN):
        blocks += [_of_entry(cache, entry) for entry in entries]
        yield
    left_out = len(hot) + len(cold) - len(chosen) - len(more)
    return BlockMap(tuple(blocks), left_out, cache.report(), cache.layout.block_size)


def _chosen(nodes: Sequence[N], most: int, parent_of: Callable[[N], N | None]) -> Work[list[N]]:
    chosen: dict[int, N] = {}
    newest = yield from _newest(nodes, most)
    for node in newest:
        path, above = list[N](), node if _is_node(node) else None
        while above is not None and _is_node(above) and id(above) not in chosen:
            path.append(above)
            above = parent_of(above)
        for one in path[::-1][: most - len(chosen)]:
            chosen[id(one)] = one
        if len(chosen) >= most:
            break
    return list(chosen.values())


def _newest(nodes: Sequence[N], most: int) -> Work[list[N]]:
    best, floor = list[N](), -1
    for part in _parts(nodes, _LOOKED):
        best += [node for node in part if node.used > floor]
        if len(best) > 2 * most:
            best = heapq.nlargest(most, best, key=_used)
            floor = best[-1].used if best else floor
        yield
    return heapq.nlargest(most, best, key=_used)


def _used(node: Block | ColdEntry) -> int:
    return node.used


def _is_node(node: Block | ColdEntry) -> bool:
    return not isinstance(node, Block) or node.parent is not None


def _parts(nodes: Sequence[N], size: int) -> Iterable[Sequence[N]]:
    return (nodes[at : at + size] for at in range(0, len(nodes), size))


def _cold_entries(cache: PrefixCache) -> Work[list[ColdEntry]]:
    entries, namespace = list[ColdEntry](), namespace_id(cache.namespace)
    for part in _parts(list(cache.cold.entries()) if cache.cold is not None else (), _LOOKED):
        entries += [entry for entry in part if _is_wanted(entry, namespace, cache)]
        yield
    return entries


def _is_wanted(entry: ColdEntry, namespace: str, cache: PrefixCache) -> bool:
    is_block = entry.record is not None and entry.record.part is RecordKind.BLOCK
    return is_block and entry.namespace == namespace and entry.key not in cache.index


def _cold_parent(cache: PrefixCache, entry: ColdEntry) -> ColdEntry | None:
    record = entry.record
    if cache.cold is None or record is None or record.parent in cache.index:
        return None
    above = cache.cold.entry(record.parent)
    return above if above is not None and above.record is not None else None


def _of_block(cache: PrefixCache, block: Block, now: float) -> MappedBlock:
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


def _of_entry(cache: PrefixCache, entry: ColdEntry) -> MappedBlock:
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
