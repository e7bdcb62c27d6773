"""Finds where a prompt leaves what is cached, token for token. Pure; mlx thread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from omlx_server.core.blocks.block import Match
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
    """A prompt's cached parts. From `diverges_at` on no tier has it, but `stored` tokens."""

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
    depth, next_tokens = match.depth, _tokens_after_match(cache, root, match)
    if cache.cold is not None:
        cold, cold_next_tokens = _cold_stretches(cache.cold, root, tokens, match, size)
        stretches += cold
        if cold:
            depth, next_tokens = cold[-1].stop, cold_next_tokens
    stretches += _missing_stretches(depth, len(tokens), size)
    cached = cache.probe(tokens, salt).cached if tokens else 0
    if depth >= len(tokens) - 1:  # the last token is always computed
        return Divergence(cached, tuple(stretches), None, (), size)
    return Divergence(cached, tuple(stretches), depth, tuple(islice(next_tokens, most)), size)


def _missing_stretches(start: int, stop: int, size: int) -> Iterator[Stretch]:
    while start < stop:
        end = min((start // size + 1) * size, stop)
        yield Stretch(start, end, None)
        start = end


def _tokens_after_match(cache: PrefixCache, root: BlockKey, match: Match) -> Iterator[int]:
    node = match.deepest() or cache.index.root(root)
    if node is None:
        return
    if node is match.partial:
        yield from node.tokens[match.shared :]
    while node.children:
        node = max(node.children.values(), key=lambda block: block.used)
        yield from node.tokens


def _cold_stretches(
    cold: ColdIndex, root: BlockKey, tokens: tuple[int, ...], match: Match, size: int
) -> tuple[list[Stretch], Iterator[int]]:
    # Returns the stretches after those in memory, and the tokens that the tier has next.
    keys, depth, stretches = chain(root, tokens, size), match.depth, list[Stretch]()
    at = match.blocks[-1].stop if match.blocks else 0
    parent = keys[at // size - 1] if at else root
    while at // size < len(keys) and keys[at // size] in cold:
        parent = keys[at // size]
        stretches.append(Stretch(max(depth, at), at + size, Tier.COLD))
        at += size
    depth = max(depth, at)
    partial, length = _longest_shared_record(cold, parent, tokens[at : at + size])
    if partial is None or at + length <= depth:
        return stretches, _newest_tokens_below(cold, parent)
    stretches.append(Stretch(depth, at + length, Tier.COLD))
    return stretches, _tokens_after(cold, partial, length)


def _longest_shared_record(
    cold: ColdIndex, parent: BlockKey, tokens: Sequence[int]
) -> tuple[Record | None, int]:
    best, most = None, 0
    for record in _child_blocks(cold, parent):
        length = shared(record.tokens, tokens)
        if length > most:
            best, most = record, length
    return best, most


def _tokens_after(cold: ColdIndex, record: Record, length: int) -> Iterator[int]:
    yield from record.tokens[length:]
    yield from _newest_tokens_below(cold, record.key)


def _newest_tokens_below(cold: ColdIndex, parent: BlockKey) -> Iterator[int]:
    while records := list(_child_blocks(cold, parent)):
        yield from records[-1].tokens
        parent = records[-1].key


def _child_blocks(cold: ColdIndex, parent: BlockKey) -> Iterator[Record]:
    return (record for record in cold.children(parent) if record.part is RecordKind.BLOCK)
