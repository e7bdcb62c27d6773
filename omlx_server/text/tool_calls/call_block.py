"""The base of readers of a block of calls."""

from dataclasses import dataclass, field

from omlx_server.text.parts import Part
from omlx_server.text.tool_calls.values import Numbering


@dataclass(slots=True, eq=False)
class BlockBody:
    """Reads one block, which follows `start_marker`. `text_behind` is None until the block ends,
    then the text after it."""

    numbering: Numbering
    start_marker: str
    text_behind: str | None = field(default=None, init=False)
    _has_call: bool = field(default=False, init=False)  # whether a call of this block is complete
    _parts: list[Part] = field(default_factory=list, init=False)

    def _pop_parts(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts
