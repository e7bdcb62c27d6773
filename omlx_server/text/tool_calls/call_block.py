"""The interface of readers of a block of calls."""

from dataclasses import dataclass, field

from omlx_server.text.parts import Part
from omlx_server.text.tool_calls.numbering import Numbering


@dataclass(slots=True, eq=False)
class BlockBody:
    """Reads what follows the start marker `lead`. `rest` is None until the block ends, then the
    text after it."""

    numbering: Numbering
    lead: str
    rest: str | None = field(default=None, init=False)
    _any: bool = field(default=False, init=False)  # whether a call of this block is complete
    _deltas: list[Part] = field(default_factory=list, init=False)

    def _taken(self) -> list[Part]:
        deltas, self._deltas = self._deltas, []
        return deltas
