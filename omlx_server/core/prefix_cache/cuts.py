"""Decides which tokens become a block, and where a checkpoint is kept. Pure."""

from collections.abc import Iterable, Sequence

from omlx_server.core.blocks.block import CacheLayout, Worth
from omlx_server.core.blocks.keys import shared
from omlx_server.core.blocks.lookup import PrefixHandle, PrefixMatch
from omlx_server.core.step import Cut


class Cutter:
    """Cuts chunks of prompts, rows that decode, and rows that end."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout

    def of_chunk(self, handle: PrefixHandle, start: int, stop: int) -> list[Cut]:
        """Return the cuts after a chunk, with a prompt's short end, for prompts that wait."""
        if not self._layout.keeps:
            return []
        size = self._layout.block_size
        worth = handle.checkpoints_at.get(stop) if stop > start else None
        cuts = [
            Cut(end - size, end, True, worth if end == stop else None)
            for end in range((start // size + 1) * size, stop + 1, size)
        ]
        ends_prompt = stop == len(handle.tokens) and stop > start
        if stop % size and (ends_prompt or worth is not None):
            cuts.append(Cut(stop - stop % size, stop, True, worth))
        return cuts

    def of_row(self, length: int) -> Cut | None:
        size = self._layout.block_size
        if length % size or not self._layout.stores_decoded:
            return None
        return Cut(length - size, length, True, None)

    def tail_of_row(self, length: int) -> Cut | None:
        tail = length % self._layout.block_size
        worth = Worth.NEWEST if self._layout.checkpointed else None
        if (not tail and worth is None) or not self._layout.stores_decoded:
            return None
        return Cut(length - tail, length, bool(tail), worth)


def plan_checkpoints(length: int, ends: Sequence[int], lattice_start: int) -> dict[int, Worth]:
    """Return checkpoint positions and their worth: `ends` of messages, the prompt's end, and
    doubled positions."""
    lattice = (lattice_start << power for power in range(length.bit_length()))
    checkpoints_at = {position: Worth.LATTICE for position in lattice if position <= length}
    checkpoints_at[length] = Worth.NEWEST
    checkpoints_at.update((position, Worth.SHARED) for position in ends if position <= length)
    return {position: worth for position, worth in checkpoints_at.items() if position > 0}


def checkpoint_branches(
    handle: PrefixHandle, prefix: PrefixMatch, active: Iterable[PrefixHandle], shortest: int
) -> None:
    """Plan checkpoints where this prompt parts from stored tokens and `active` prompts."""
    if prefix.match.depth > prefix.cached and prefix.match.depth >= shortest:
        handle.checkpoints_at[prefix.match.depth] = Worth.SHARED
    for other in active:
        common = shared(handle.tokens, other.tokens) if other.root == handle.root else 0
        if common >= shortest:
            other.checkpoints_at[common] = Worth.SHARED
