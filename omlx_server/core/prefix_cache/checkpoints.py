"""At which positions of a prompt its recurrent state is kept, and why. Pure."""

from collections.abc import Iterable, Sequence

from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.keys import shared
from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.blocks.restore import Found


def marks_of(length: int, ends: Sequence[int], lattice_start: int) -> dict[int, Worth]:
    """Where a prompt of `length` tokens leaves its state: at the `ends` of its messages, and on a
    lattice, which makes sure that any prefix of it has one past its middle."""
    lattice = (lattice_start << power for power in range(length.bit_length()))
    marks = {position: Worth.LATTICE for position in lattice if position <= length}
    marks[length] = Worth.NEWEST
    marks.update((position, Worth.SHARED) for position in ends if position <= length)
    return {position: worth for position, worth in marks.items() if position > 0}


def mark_branches(ticket: Ticket, found: Found, active: Iterable[Ticket], shortest: int) -> None:
    """Where two prompts part, a state serves everybody who comes after. What is shared by fewer
    tokens than `shortest` (the header of a template) is not worth one."""
    if found.match.depth > found.cached and found.match.depth >= shortest:
        ticket.marks[found.match.depth] = Worth.SHARED
    for other in active:
        common = shared(ticket.tokens, other.tokens) if other.root == ticket.root else 0
        if common >= shortest:
            other.marks[common] = Worth.SHARED
