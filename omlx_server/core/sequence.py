"""The engine's state of one generation, and of the prefill that sequences may share.

Owned by the scheduler. Token counts of a sequence:

    prompt | output (read back) | in flight (sampled on the device, not yet read)
"""

from dataclasses import dataclass, field

from omlx_server.core.request import Request
from omlx_server.core.step import Chunk, Join, SequenceId


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice. `in_flight` is how far the device runs ahead of the host."""

    id: SequenceId
    request: Request
    output: list[int] = field(default_factory=list)
    in_flight: int = 0

    @property
    def context(self) -> tuple[int, ...]:
        return (*self.request.tokens, *self.output) if self.output else self.request.tokens

    @property
    def exhausted(self) -> bool:
        """Whether the last token it may have has already been launched."""
        return len(self.output) + self.in_flight >= self.request.sampling.max_tokens

    def join(self) -> Join:
        return Join(self.id, self.context, len(self.request.tokens), self.request.sampling)


@dataclass(slots=True, eq=False)
class Prefill:
    """Sequences with one common context that is computed once, then handed to each of them."""

    sequences: list[Sequence]
    order: int
    computed: int = 0
    key: SequenceId = field(init=False)
    target: int = field(init=False)
    context: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.sequences[0].id
        self.context = self.sequences[0].context
        self.target = len(self.context) - 1

    @property
    def request(self) -> Request:
        return self.sequences[0].request

    @property
    def remaining(self) -> int:
        return self.target - self.computed

    def next_stop(self, grid: int) -> int:
        """End of the next chunk: the next absolute multiple of `grid`, or the end."""
        return min(self.target, (self.computed // grid + 1) * grid)

    def chunk(self, grid: int) -> Chunk:
        """The next piece. Does not modify."""
        stop = self.next_stop(grid)
        joins = tuple(s.join() for s in self.sequences) if stop == self.target else ()
        return Chunk(self.key, self.computed, self.context[self.computed : stop], joins)
