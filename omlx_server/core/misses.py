"""Why a prompt was not reused, or not wholly. Pure, owned by the prefix cache."""

from collections import OrderedDict
from collections.abc import Sequence

from omlx_server.core.blocks import BlockIndex
from omlx_server.core.keys import BlockKey, block_key
from omlx_server.core.request import Miss
from omlx_server.core.restore import Found
from omlx_server.core.ticket import Ticket

_BEGINNINGS = 4096


class Misses:
    """Names the reason, and remembers how prompts of all namespaces began."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._roots: OrderedDict[BlockKey, BlockKey] = OrderedDict()  # by beginning

    def note_beginning(self, root: BlockKey, tokens: Sequence[int]) -> None:
        """A sequence under this root begins with these tokens."""
        self._roots[self._beginning(tokens)] = root
        if len(self._roots) > _BEGINNINGS:
            self._roots.popitem(last=False)

    def forget(self) -> None:
        self._roots.clear()

    def reason(self, ticket: Ticket, found: Found) -> Miss:
        """Why no more of the prompt is restored."""
        depth = found.match.depth
        next_block = depth // self._index.block_size
        if not ticket.reuses:
            return Miss.UNREADABLE
        if found.cached >= len(ticket.tokens):
            return Miss.NONE
        if ticket.unread:
            return Miss.UNREADABLE
        if depth > found.cached:
            return Miss.NO_CHECKPOINT
        if next_block < len(ticket.keys) and self._index.was_evicted(ticket.keys[next_block]):
            return Miss.EVICTED
        if depth:
            return Miss.DIVERGED
        elsewhere = self._roots.get(self._beginning(ticket.tokens), ticket.root)
        return Miss.NEW_PREFIX if elsewhere == ticket.root else Miss.NAMESPACE

    def _beginning(self, tokens: Sequence[int]) -> BlockKey:
        """A name for how a sequence begins, whatever its namespace."""
        return block_key(BlockKey(b""), tokens[: self._index.block_size])
