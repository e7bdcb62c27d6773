"""What a reader of one block of calls has, whatever the calls are written in. Owned by a parser."""

from dataclasses import dataclass, field

from omlx_server.text.parts import Part
from omlx_server.text.tool_calls.numbering import Numbering


@dataclass(slots=True, eq=False)
class BlockBody:
    """Reads what follows the start marker `lead`. `rest` is None until the block has ended, then
    the text after it."""

    numbering: Numbering
    lead: str
    rest: str | None = field(default=None, init=False)
    _any: bool = field(default=False, init=False)  # whether a call of this block is complete
    _deltas: list[Part] = field(default_factory=list, init=False)

    def _taken(self) -> list[Part]:
        """What can be told since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas
