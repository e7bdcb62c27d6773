"""The scheduler's state of one generation, and of the prefill that sequences may share.

Owned by the scheduler. Token counts of a sequence:

    prompt | output (read back) | in flight (sampled on the device, not yet read)
    fed: tokens that its caches hold, those of a draft under way included; the next step feeds the
         newest sampled token, and maybe a draft
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
    """One choice of a request. `in_flight` is the number of its tokens that the device samples or
    has sampled, and that the host has not read.

    The first `prefilled` of the fed tokens were computed as a prompt before it became a row.
    `forced` tokens must follow the output. Of the fed tokens the last `drafted` ones are a draft
    that is being verified: those that are wrong are fed no more once the step is read. The drafter
    has drafted them if `by_drafter` is set. `lookup` and `chance` are for drafts from the text,
    `drafter_chance` is for the drafter's. `ended_by` is the last token where it is not in the
    output: a stop token, or one after which its constraint has a problem.
    `blocks` are those to which its row refers; `keys` those of its full blocks behind the key
    `root`, as far as they are known. `came` is when it came, in its owner's virtual time. `told` is
    the time until which it was told to wait for its next token at most, while it is in the queue;
    its prompt was let in at `admitted`."""

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
        """Whether the sequence has decoded a token since it became a row."""
        return self.fed > self.prefilled

    def age(self) -> tuple[int, float, SequenceId]:
        """A sort key: highest for the newest sequence of the last priority class, which makes way
        first when memory is short."""
        return self.request.priority, self.request.arrived, self.id

    def feed(self, drafted: int = 0, *, by_drafter: bool = False) -> None:
        """Note that a step feeds the newest token and so many drafted ones after it."""
        self.in_flight += 1
        self.drafted, self.by_drafter = drafted, by_drafter
        self.fed += 1 + drafted

    def read(self, row: SampledRow) -> None:
        """Note that a step is read: of its draft only what was right is fed."""
        self.in_flight -= 1
        if self.drafted:
            self.fed -= self.drafted - row.accepted
            self.drafted = 0

    def place(self, cut: Cut, size: int) -> BlockPlace:
        """Where the tokens of a cut stand, of blocks of `size` tokens. Raises ValueError when not
        all are read yet."""
        start = first_token(cut, size)
        while len(self.keys) * size < start:
            at, above = len(self.keys) * size, self.keys[-1] if self.keys else self.root
            self.keys.append(block_key(above, self._fed_tokens(at, at + size)))
        above = self.keys[start // size - 1] if start else self.root
        return BlockPlace(above, start, self._fed_tokens(start, cut.stop))

    def _fed_tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """The tokens [start, stop) that the caches hold, a stop token among them."""
        prompt, output = self.request.tokens, self.output
        output = output if self.ended_by is None else [*output, self.ended_by]
        count = len(prompt)
        if stop > count + len(output):
            raise ValueError("these tokens are not known yet")
        return (*prompt[start:stop], *output[max(0, start - count) : max(0, stop - count)])

    @property
    def users(self) -> list[BlocksInUse]:
        """Whose blocks those are that are cut of it."""
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
    """Sequences with one common context that is computed once, then handed to each of them.

    `target` tokens are to be computed: the `context` but its last token. `computed` tokens are in
    its caches, of which `restored` came from the prefix cache. While it waits, `expected` tokens
    could be restored when that was last looked up; `waited`: it had to wait for a block then.
    `is_urgent`: it would miss the time that was told behind others. `passed_since` is when others
    were first let in before it, because it did not fit; nobody is once they `made_way` for it. It
    was let in at `admitted`."""

    sequences: list[Sequence]
    order: int
    handle: PrefixHandle
    expected: int = 0
    waited: bool = False
    is_urgent: bool = False
    passed_since: float | None = None
    made_way: bool = False
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
        """Tell its sequences how long they wait for their next tokens at most."""
        for sequence in self.sequences:
            sequence.told = until

    @property
    def remaining(self) -> int:
        return self.target - max(self.computed, self.expected)

    @property
    def has_answered(self) -> bool:
        """Whether its sequences have output already: all or none, as they share their context."""
        return bool(self.sequences[0].output)

    def next_stop(self, position: int, grid: int) -> int:
        """Where the chunk that starts at `position` ends: as the handle says, but no image is
        cut that must not be."""
        return uncut(self.request.images, position, self.handle.next_stop(position, grid))

    def chunk(self, stop: int, cuts: Iterable[Cut] = ()) -> Chunk:
        """The next chunk, up to token `stop`."""
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
        """Where the tokens of a cut stand, of blocks of `size` tokens."""
        start, handle = first_token(cut, size), self.handle
        above = handle.keys[start // size - 1] if start else handle.root
        return BlockPlace(above, start, self.context[start : cut.stop])

    @property
    def users(self) -> list[BlocksInUse]:
        """Whose blocks those are that are cut of it: its own while it is under way, then those of
        its rows."""
        return [self.handle.blocks, *(sequence.blocks for sequence in self.sequences)]

    def joins(self) -> tuple[Join, ...]:
        return tuple(sequence.join() for sequence in self.sequences)


TokenSource = Sequence | PrefillState


def first_token(cut: Cut, size: int) -> int:
    """The first token of the block of `size` tokens in which a cut stops."""
    return cut.start if cut.start < cut.stop else max(0, cut.stop - size)


def source_of(cut: Cut) -> TokenSource:
    """The sequence or the prefill whose tokens a cut covers."""
    assert isinstance(cut.source, Sequence | PrefillState)
    return cut.source
