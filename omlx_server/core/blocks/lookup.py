"""One prefill's business with the prefix cache. Owned by the mlx thread."""

from dataclasses import dataclass, field

from omlx_server.core.blocks.block import Block, Checkpoint, Worth
from omlx_server.core.blocks.keys import BlockKey


@dataclass(slots=True, eq=False)
class Ticket:
    """One prefill's business with the cache.

    `owner` is whose prompt it is. `keys` are those of all its full blocks; `known` tokens were
    stored when it was queued; `marks` are the positions at which recurrent state is wanted;
    `waiting` until its turn has come. `reading` are blocks on their way from the cold tier, which
    gave `promoted` tokens already and may still give `room` bytes; `question` is what it was asked
    before, or 0.
    Without `reuses` all is computed: something stored for this prompt was unreadable.
    """

    root: BlockKey
    tokens: tuple[int, ...]
    keys: list[BlockKey]
    owner: bytes = b""
    reading: set[BlockKey] = field(default_factory=set)
    leased: list[Block | Checkpoint] = field(default_factory=list)
    claimed: list[BlockKey] = field(default_factory=list)
    marks: dict[int, Worth] = field(default_factory=dict)
    known: int = 0
    waiting: bool = True
    reuses: bool = True
    promoted: int = 0
    room: int = 0
    question: int = 0
    unread: str = ""

    @property
    def awaits_cold(self) -> bool:
        """Whether the cold tier has yet to say what it has, or to read it."""
        return bool(self.reading or self.question)

    def next_stop(self, position: int, grid: int) -> int:
        """Where the chunk after `position` ends: on the grid, at a mark, or with the prompt. What
        would be left over beyond the grid is taken along if it is little: a forward of its own
        costs several times as much."""
        stop = (position // grid + 1) * grid
        stop = len(self.tokens) if len(self.tokens) <= stop + grid // 8 else stop
        return min((mark for mark in self.marks if position < mark < stop), default=stop)
