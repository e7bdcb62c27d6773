"""The scheduler's state of one generation, and of a prefill that sequences may share.

prompt | output (read back) | in flight (sampled on the device, not yet read)
fed: tokens that its caches hold, those of a draft under way included
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from omlx_server.core.blocks.block import BlockPlace
from omlx_server.core.blocks.keys import NO_KEY, BlockKey, block_key
from omlx_server.core.blocks.lookup import BlocksInUse, PrefixHandle
from omlx_server.core.images import shift, uncut, within
from omlx_server.core.request import Request, SampledRow
from omlx_server.core.speculation.chance import Chance
from omlx_server.core.speculation.ngram import NgramLookup
from omlx_server.core.step import Chunk, Cut, Join, SequenceId


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request. The first `prefilled` of its `fed` tokens were its prefill, the
    last `drafted` are being verified. `ended_by` is a last token outside the output. `keys` are
    its full blocks' after `root`. `came` is in its owner's virtual time."""

    id: SequenceId
    request: Request
    output: list[int] = field(default_factory=list)
    ended_by: int | None = None
    in_flight: int = 0
    fed: int = 0
    prefilled: int = 0
    forced: tuple[int, ...] = ()
    drafted: int = 0
    by_drafter: bool = False
    lookup: NgramLookup | None = None
    chance: Chance = field(default_factory=Chance)
    drafter_chance: Chance | None = None
    blocks: BlocksInUse = field(default_factory=BlocksInUse)
    root: BlockKey = NO_KEY
    keys: list[BlockKey] = field(default_factory=list)
    came: float | None = None
    told: float | None = None
    admitted: float = 0.0

    @property
    def context(self) -> tuple[int, ...]:
        return (*self.request.tokens, *self.output) if self.output else self.request.tokens

    @property
    def has_decoded(self) -> bool:
        return self.fed > self.prefilled

    def age(self) -> tuple[int, float, SequenceId]:
        """Return a sort key: the highest makes way first."""
        return self.request.priority, self.request.arrived, self.id

    def feed(self, drafted: int = 0, *, by_drafter: bool = False) -> None:
        self.in_flight += 1
        self.drafted, self.by_drafter = drafted, by_drafter
        self.fed += 1 + drafted

    def read(self, row: SampledRow) -> None:
        self.in_flight -= 1
        if self.drafted:
            self.fed -= self.drafted - row.accepted
            self.drafted = 0

    def place(self, cut: Cut, size: int) -> BlockPlace:
        """Raises ValueError when not all of a cut's tokens are read yet."""
        start = first_token(cut, size)
        while len(self.keys) * size < start:
            at, above = len(self.keys) * size, self.keys[-1] if self.keys else self.root
            self.keys.append(block_key(above, self._fed_tokens(at, at + size)))
        above = self.keys[start // size - 1] if start else self.root
        return BlockPlace(above, start, self._fed_tokens(start, cut.stop))

    def _fed_tokens(self, start: int, stop: int) -> tuple[int, ...]:
        prompt, output = self.request.tokens, self.output
        output = output if self.ended_by is None else [*output, self.ended_by]
        count = len(prompt)
        if stop > count + len(output):
            raise ValueError("these tokens are not known yet")
        return (*prompt[start:stop], *output[max(0, start - count) : max(0, stop - count)])

    @property
    def users(self) -> list[BlocksInUse]:
        """Owners of the blocks cut from this sequence."""
        return [self.blocks]

    def join(self) -> Join:
        request = self.request
        prompt = len(request.tokens)
        ahead = shift(request.images, prompt) if request.images else 0
        return Join(
            self.id,
            self.context,
            prompt,
            request.sampling,
            request.constraint,
            ahead,
            request.adapter,
        )


@dataclass(slots=True, eq=False)
class PrefillState:
    """Sequences with one context that is computed once, then handed to each.

    `target` tokens are to be computed: all but the last. Others passed it since `passed_since`, but
    none do once others were preempted for it (`room_made`).
    """

    sequences: list[Sequence]
    order: int
    handle: PrefixHandle
    expected: int = 0
    waited: bool = False
    is_urgent: bool = False
    passed_since: float | None = None
    room_made: bool = False
    admitted: float = 0.0
    computed: int = 0
    restored: int = 0
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
    def told(self) -> float | None:
        return self.sequences[0].told

    def tell(self, until: float) -> None:
        for sequence in self.sequences:
            sequence.told = until

    @property
    def remaining(self) -> int:
        return self.target - max(self.computed, self.expected)

    @property
    def has_answered(self) -> bool:
        return bool(self.sequences[0].output)

    def next_stop(self, position: int, grid: int) -> int:
        return uncut(self.request.images, position, self.handle.next_stop(position, grid))

    def chunk(self, stop: int, cuts: Iterable[Cut] = ()) -> Chunk:
        start, images = self.computed, self.request.images
        joins = self.joins() if stop == self.target else ()
        seen, ahead = within(images, start, stop), shift(images, start)
        tokens = self.context[start:stop]
        return Chunk(
            self.key,
            start,
            tokens,
            joins,
            tuple(cuts),
            self.restored,
            seen,
            ahead,
            self.request.adapter,
        )

    def place(self, cut: Cut, size: int) -> BlockPlace:
        start, handle = first_token(cut, size), self.handle
        above = handle.keys[start // size - 1] if start else handle.root
        return BlockPlace(above, start, self.context[start : cut.stop])

    @property
    def users(self) -> list[BlocksInUse]:
        return [self.handle.blocks, *(sequence.blocks for sequence in self.sequences)]

    def joins(self) -> tuple[Join, ...]:
        return tuple(sequence.join() for sequence in self.sequences)


TokenSource = Sequence | PrefillState


def first_token(cut: Cut, size: int) -> int:
    return cut.start if cut.start < cut.stop else max(0, cut.stop - size)
