"""Which tokens become a block, and after which a state is kept. Pure arithmetic; owned by the
prefix cache.
"""

from omlx_server.core.blocks.block import Worth
from omlx_server.core.blocks.layout import CacheLayout
from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.step import Cut


class Cutter:
    """Cuts for the caches of one layout."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout

    def of_chunk(self, ticket: Ticket, start: int, stop: int, source: object) -> list[Cut]:
        """Blocks that are complete after tokens [start, stop), and the state at a mark. The tail
        of a prompt is kept at once: who waits for this prompt may share it to the last token."""
        size = self._layout.block_size
        worth = ticket.marks.get(stop) if stop > start else None
        cuts = [
            Cut(end - size, end, True, worth if end == stop else None, source)
            for end in range((start // size + 1) * size, stop + 1, size)
        ]
        ends = stop == len(ticket.tokens) and stop > start
        if stop % size and (ends or worth is not None):
            cuts.append(Cut(stop - stop % size, stop, True, worth, source))
        return cuts

    def of_row(self, length: int, source: object) -> Cut | None:
        """The block that a decoding row has completed with its newest token."""
        size = self._layout.block_size
        if length % size or not self._layout.stores_decoded:
            return None
        return Cut(length - size, length, True, None, source)

    def tail_of_row(self, length: int, source: object) -> Cut | None:
        """What is left of a row that ends: its unfinished block, its newest state."""
        rest = length % self._layout.block_size
        worth = Worth.NEWEST if self._layout.checkpointed else None
        if (not rest and worth is None) or not self._layout.stores_decoded:
            return None
        return Cut(length - rest, length, bool(rest), worth, source)


class NoCutter(Cutter):
    """For caches that can't be cut."""

    def of_chunk(self, ticket: Ticket, start: int, stop: int, source: object) -> list[Cut]:
        return []

    def of_row(self, length: int, source: object) -> Cut | None:
        return None

    def tail_of_row(self, length: int, source: object) -> Cut | None:
        return None
