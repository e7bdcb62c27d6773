"""Finds where a prompt leaves what is cached, token for token. Pure; mlx thread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from omlx_server.core.blocks.block import Block, Match
from omlx_server.core.blocks.keys import BlockKey, chain, shared
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache


class Tier(StrEnum):
    HOT = "hot"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens [start, stop) of a prompt in one block, and the tier that has them."""

    start: int
    stop: int
    tier: Tier | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The cached parts of a prompt. From `diverges_at` on no tier has its tokens; `stored` are
    the nearest branch's."""

    cached: int
    stretches: tuple[Stretch, ...]
    diverges_at: int | None
    stored: tuple[int, ...]
    block_tokens: int


def divergence(cache: PrefixCache, tokens: tuple[int, ...], salt: bytes, most: int) -> Divergence:
    """Compare a prompt with what is cached for its `salt`. Does not modify."""
    root, size = cache.root(salt), cache.layout.block_size
    match = cache.index.match(root, tokens)
    stretches = [Stretch(b.start, min(b.stop, match.depth), Tier.HOT) for b in match.path]
    depth, after = match.depth, _after_match(cache, root, match)
    if cache.cold is not None:
        cold, follows = _in_cold(cache.cold, root, tokens, match, size)
        stretches += cold
        if cold:
            depth, after = cold[-1].stop, follows
    stretches += _missing(depth, len(tokens), size)
    ends = depth >= len(tokens) - 1
    stored = () if ends else tuple(token for token, _ in zip(after, range(most), strict=False))
    cached = cache.probe(tokens, salt).cached if tokens else 0
    return Divergence(cached, tuple(stretches), None if ends else depth, stored, size)


def _missing(start: int, stop: int, size: int) -> Iterator[Stretch]:
    while start < stop:
        end = min((start // size + 1) * size, stop)
        yield Stretch(start, end, None)
        start = end


# --- In memory -----------------------------------------------------------------------------------


def _after_match(cache: PrefixCache, root: BlockKey, match: Match) -> Iterator[int]:
    node = match.deepest() or cache.index.root(root)
    if node is None:
        return
    if node is match.partial:
        yield from node.tokens[match.shared :]
    while node.children:
        node = max(node.children.values(), key=_used)
        yield from node.tokens


def _used(block: Block) -> int:
    return block.used


# --- In the cold tier ----------------------------------------------------------------------------


def _in_cold(
    cold: ColdIndex, root: BlockKey, tokens: tuple[int, ...], match: Match, size: int
) -> tuple[list[Stretch], Iterator[int]]:
    keys = chain(root, tokens, size)
    at = match.blocks[-1].stop if match.blocks else 0
    above, depth, stretches = keys[at // size - 1] if at else root, match.depth, list[Stretch]()
    while at // size < len(keys) and keys[at // size] in cold:
        above = keys[at // size]
        stretches.append(Stretch(max(depth, at), at + size, Tier.COLD))
        at += size
    depth = max(depth, at)
    partial, length = _longest(cold, above, tokens[at : at + size])
    if partial is None or at + length <= depth:
        return stretches, _below(cold, above)
    stretches.append(Stretch(depth, at + length, Tier.COLD))
    return stretches, _rest(cold, partial, length)


def _longest(cold: ColdIndex, above: BlockKey, tokens: Sequence[int]) -> tuple[Record | None, int]:
    best, most = None, 0
    for record in _blocks(cold, above):
        length = shared(record.tokens, tokens)
        if length > most:
            best, most = record, length
    return best, most


def _rest(cold: ColdIndex, record: Record, length: int) -> Iterator[int]:
    yield from record.tokens[length:]
    yield from _below(cold, record.key)


def _below(cold: ColdIndex, above: BlockKey) -> Iterator[int]:
    while records := list(_blocks(cold, above)):
        yield from records[-1].tokens
        above = records[-1].key


def _blocks(cold: ColdIndex, above: BlockKey) -> Iterator[Record]:
    return (record for record in cold.children(above) if record.part is RecordKind.BLOCK)
