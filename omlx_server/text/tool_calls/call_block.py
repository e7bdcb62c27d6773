"""The interface of readers of a block of calls, and a call that grows."""

from dataclasses import dataclass, field

from omlx_server.text.encoding.utf8 import whole
from omlx_server.text.parts import Arguments, CallStart, Part
from omlx_server.text.tool_calls.numbering import Numbering
from omlx_server.text.tool_calls.plain_json import dumped


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


class GrowingCall:
    """A call whose deltas start with its first parameter."""

    def __init__(self, numbering: Numbering, name: str) -> None:
        self._numbering = numbering
        self.name = name
        self._start: CallStart | None = None
        self._told: set[str] = set()

    @property
    def started(self) -> bool:
        return self._start is not None

    def add(self, key: str, value: str) -> list[Part]:
        key, begun = whole(key), self._begun()
        if key in self._told:
            return begun
        comma = ", " if self._told else ""
        self._told.add(key)
        assert self._start is not None
        return [*begun, Arguments(self._start.index, f"{comma}{dumped(key)}: {value}")]

    def end(self) -> list[Part]:
        begun = self._begun()
        assert self._start is not None
        return [*begun, Arguments(self._start.index, "}")]

    def _begun(self) -> list[Part]:
        if self._start is not None:
            return []
        self._start = self._numbering.start(whole(self.name))
        return [self._start, Arguments(self._start.index, "{")]
