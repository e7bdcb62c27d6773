"""Why a prompt was not reused, or not wholly. Pure, owned by the prefix cache."""

from collections import OrderedDict

from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.keys import BlockKey, block_key
from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.blocks.restore import Found
from omlx_server.core.request import Miss

_BEGINNINGS = 4096
_Beginning = tuple[bytes, BlockKey]


class Misses:
    """Names the reason, and remembers how prompts began. What one owner has asked is told to no
    other: to him a prompt that somebody else has asked is as new as any."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._roots: OrderedDict[_Beginning, BlockKey] = OrderedDict()

    def note(self, ticket: Ticket) -> None:
        """This prompt is being computed: from now on its owner may be told where it is kept."""
        self._roots[self._beginning(ticket)] = ticket.root
        if len(self._roots) > _BEGINNINGS:
            self._roots.popitem(last=False)

    def forget(self, root: BlockKey | None = None) -> None:
        """Every prompt, or those under one root."""
        kept = [item for item in self._roots.items() if root is not None and item[1] != root]
        self._roots = OrderedDict(kept)

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
        elsewhere = self._roots.get(self._beginning(ticket), ticket.root)
        return Miss.NEW_PREFIX if elsewhere == ticket.root else Miss.NAMESPACE

    def _beginning(self, ticket: Ticket) -> _Beginning:
        """Whose prompt, and a name for how it begins, whatever its namespace."""
        first = ticket.tokens[: self._index.block_size]
        return ticket.owner, block_key(BlockKey(b""), first)
