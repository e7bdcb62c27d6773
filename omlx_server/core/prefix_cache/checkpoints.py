"""Positions at which checkpoints of recurrent state are kept. Pure."""

from collections.abc import Iterable, Sequence

from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.keys import shared
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.blocks.restore import PrefixMatch


def checkpoints_of(length: int, ends: Sequence[int], lattice_start: int) -> dict[int, Worth]:
    """Return checkpoint positions and their worth: the `ends` of messages, the prompt's end, and
    doubled positions, so that any longer prefix has one in its second half."""
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
