"""The scheduler's state of one generation, and of a prefill that sequences may share.

prompt | output (read back) | in flight (sampled on the device, not yet read)
fed: tokens that its caches hold, those of a draft under way included
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from omlx_server.core.blocks.block import BlockPlace
from omlx_server.core.blocks.keys import NO_KEY, BlockKey, block_key
from omlx_server.core.blocks.lookup import BlocksInUse, PrefixHandle
from omlx_server.core.images import images_within, position_shift, stop_at_image
from omlx_server.core.request import Request, SampledRow
from omlx_server.core.speculation.depth import Chance
from omlx_server.core.speculation.ngram import NgramLookup
from omlx_server.core.step import Chunk, Cut, Join, SequenceId


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of a request."""

    id: SequenceId
    request: Request
    output: list[int] = field(default_factory=list)
    ended_by: int | None = None  # a last token outside the output
    in_flight: int = 0  # steps whose tokens are not read yet
    fed: int = 0
    prefilled: int = 0  # the first of `fed`, by its prefill
    drafted: int = 0  # the last of `fed`: a draft that is being verified
    is_unusable: bool = False  # its caches hold what is no number
    forced: tuple[int, ...] = ()  # next tokens by the grammar
    by_drafter: bool = False
    lookup: NgramLookup | None = None
    chance: Chance = field(default_factory=Chance)
    drafter_chance: Chance | None = None
    blocks: BlocksInUse = field(default_factory=BlocksInUse)
    root: BlockKey = NO_KEY
    keys: list[BlockKey] = field(default_factory=list)  # of its full blocks after `root`
    virtual_arrival: float | None = None  # in its owner's virtual time
    promised_by: float | None = None  # the time of its first token, at the latest
    admitted: float = 0.0  # when its prefill began

    @property
    def context(self) -> tuple[int, ...]:
        return (*self.request.tokens, *self.output) if self.output else self.request.tokens

    @property
    def has_decoded(self) -> bool:
        return self.fed > self.prefilled

    @property
    def proven(self) -> int:
        """The first tokens whose caches are right: finite logits came of them."""
        known = len(self.context) - 1
        return known if known > self.prefilled else 0  # else no token came of these caches

    def last_in_line(self) -> tuple[int, float, SequenceId]:
        """Return a sort key: the sequence with the highest makes way first."""
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
        """Return the place of a cut's block. Raises ValueError before all its tokens are read."""
        start = block_start(cut, size)
        while len(self.keys) * size < start:
            at = len(self.keys) * size
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(block_key(parent, self._fed_tokens(at, at + size)))
        parent = self.keys[start // size - 1] if start else self.root
        return BlockPlace(parent, start, self._fed_tokens(start, cut.stop))

    def _fed_tokens(self, start: int, stop: int) -> tuple[int, ...]:
        prompt, count = self.request.tokens, len(self.request.tokens)
        answer = self.output if self.ended_by is None else [*self.output, self.ended_by]
        if stop > count + len(answer):
            raise ValueError("these tokens are not known yet")
        return (*prompt[start:stop], *answer[max(0, start - count) : max(0, stop - count)])

    @property
    def users(self) -> list[BlocksInUse]:
        """Owners of the blocks cut from this sequence."""
        return [self.blocks]

    def join(self) -> Join:
        request = self.request
        prompt_tokens = len(request.tokens)
        ahead = position_shift(request.images, prompt_tokens) if request.images else 0
        return Join(
            self.id,
            self.context,
            prompt_tokens,
            request.sampling,
            request.constraint,
            ahead,
            request.adapter,
        )


@dataclass(slots=True, eq=False)
class PrefillState:
    """Sequences with one context that is computed once, then handed to each."""

    sequences: list[Sequence]
    order: int  # its number since the start
    handle: PrefixHandle
    expected: int = 0  # tokens that will be restored when it begins
    waited: bool = False  # for blocks, when last looked at
    is_urgent: bool = False
    passed_since: float | None = None  # when others began to pass it
    room_made: bool = False  # others were preempted for it, so that none may pass it
    admitted: float = 0.0
    computed: int = 0  # tokens that its caches hold, restored ones included
    restored: int = 0
    key: SequenceId = field(init=False)
    target: int = field(init=False)  # tokens to compute: all but the last
    context: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.sequences[0].id
        self.context = self.sequences[0].context
        self.target = len(self.context) - 1

    @property
    def request(self) -> Request:
        return self.sequences[0].request

    @property
    def promised_by(self) -> float | None:
        return self.sequences[0].promised_by

    def promise_first_token(self, until: float) -> None:
        for sequence in self.sequences:
            sequence.promised_by = until

    @property
    def remaining(self) -> int:
        return self.target - max(self.computed, self.expected)

    @property
    def has_answered(self) -> bool:
        return bool(self.sequences[0].output)

    def next_stop(self, position: int, grid: int) -> int:
        return stop_at_image(self.request.images, position, self.handle.next_stop(position, grid))

    def chunk(self, stop: int, cuts: Iterable[Cut] = ()) -> Chunk:
        start, images = self.computed, self.request.images
        return Chunk(
            self.key,
            start,
            self.context[start:stop],
            joins=self.joins() if stop == self.target else (),
            cuts=tuple(cuts),
            restored=self.restored,
            images=images_within(images, start, stop),
            shift=position_shift(images, start),
            adapter=self.request.adapter,
        )

    def place(self, cut: Cut, size: int) -> BlockPlace:
        start, handle = block_start(cut, size), self.handle
        parent = handle.keys[start // size - 1] if start else handle.root
        return BlockPlace(parent, start, self.context[start : cut.stop])

    @property
    def users(self) -> list[BlocksInUse]:
        return [self.handle.blocks, *(sequence.blocks for sequence in self.sequences)]

    def joins(self) -> tuple[Join, ...]:
        return tuple(sequence.join() for sequence in self.sequences)


TokenSource = Sequence | PrefillState


def block_start(cut: Cut, size: int) -> int:
    # A cut without tokens has only a checkpoint, in the block that ends there.
    return cut.start if cut.start < cut.stop else max(0, cut.stop - size)
