"""Keys and values by reference: where the tokens of a sequence are, and what refers to them.

    Buffers  the arrays of one layer that one sequence has written, with unused places behind
    Strip    the tokens of one layer of a sequence: a place in buffers, which changes when the
             sequence joins or leaves a group of rows
    Run      the strips of all layers of full attention: what one sequence has computed
    Segment  tokens [start, stop) of a run, to which a block of the prefix cache or a row refers
    Span     a segment in one layer

Positions are those of tokens in their sequence. References go one way, from rows and blocks over
segments and runs to the arrays; what is named weakly here only finds its way back. So a run is gone
with the last segment of it, and with its own sequence. Owned by the mlx thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import ReferenceType, WeakSet, ref

import mlx.core as mx

from omlx_server.compute.hardware.copies import compute_copies
from omlx_server.compute.kv.schemes.base import Arrays
from omlx_server.core.memory.kv import GROWTH


class LostTokens(Exception):
    """The tokens of a run are gone: a step that wrote to its buffers has failed."""


class Holder(Protocol):
    """Buffers of rows: arrays [R, H, C, F] of keys and of values, () while there is nothing."""

    keys: Arrays
    values: Arrays


@dataclass(slots=True, eq=False, repr=False)
class Buffers:
    """Arrays [1, H, C, F] of one sequence. `owner` is the cache that writes to them."""

    keys: Arrays = ()
    values: Arrays = ()
    owner: "ReferenceType[Any] | None" = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.keys, *self.values))

    @property
    def is_idle(self) -> bool:
        """Whether no cache writes to them any more."""
        return self.owner is None or self.owner() is None


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Strip:
    """The tokens of one layer of a sequence, from token `first` on: row `place` of the buffers of
    `holder`. `run` finds the run that has it."""

    holder: Holder
    place: int = 0
    first: int = 0
    run: "ReferenceType[TokenRun] | None" = None

    def arrays(self, start: int, stop: int) -> tuple[Arrays, Arrays]:
        """Keys and values of tokens [start, stop): views [1, H, stop - start, F].

        Raises:
            LostTokens: they are gone.
        """
        at, tokens = slice(self.place, self.place + 1), slice(start - self.first, stop - self.first)
        if isinstance(self.holder, _Nowhere):
            raise LostTokens("the tokens were in a step that failed")
        keys, values = (
            tuple(array[at, :, tokens] for array in arrays)
            for arrays in (self.holder.keys, self.holder.values)
        )
        return keys, values

    @property
    def token_bytes(self) -> int:
        """The bytes of a token in this layer."""
        held = (*self.holder.keys, *self.holder.values)
        return sum(array.nbytes // (array.shape[0] * array.shape[2]) for array in held)

    @property
    def needed(self) -> int:
        """Up to which token segments refer to it; 0 when none does."""
        return self.extent[1]

    @property
    def extent(self) -> tuple[int, int]:
        """The first token that a segment refers to, and the one after the last."""
        run = self.run() if self.run is not None else None
        return run.extent if run is not None else (self.first, self.first)

    def move(self, holder: Holder, place: int = 0) -> None:
        """Note that the tokens are in other buffers now."""
        self.holder, self.place = holder, place

    def lose(self) -> None:
        """Note that what is in the buffers may not be used any more."""
        self.holder = _Nowhere()


class _Nowhere:
    """The holder of what is lost."""

    keys: Arrays = ()
    values: Arrays = ()


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class TokenRun:
    """What one sequence has computed, from the first token of its strips on. `tidy_bytes` is what
    its buffers take since it was tidied; None while it is in use, or if segments have come or gone
    since. It `is_tight` when no place of them is unused."""

    runs: "Runs"
    strips: tuple[Strip, ...]
    segments: "WeakSet[Segment]" = field(default_factory=WeakSet)
    tidy_bytes: int | None = None
    is_tight: bool = False

    def __post_init__(self) -> None:
        for strip in self.strips:
            strip.run = ref(self)

    @property
    def token_bytes(self) -> int:
        """The bytes of a token in all layers."""
        return sum(strip.token_bytes for strip in self.strips)

    @property
    def is_idle(self) -> bool:
        """Whether no sequence writes to it any more."""
        holder = self.strips[0].holder
        return isinstance(holder, Buffers) and holder.is_idle

    @property
    def is_free(self) -> bool:
        """Whether it is idle, and only blocks refer to it."""
        return self.is_idle and all(segment.holder is not None for segment in self.segments)

    @property
    def is_lost(self) -> bool:
        """Whether what is in the buffers may not be used any more."""
        return any(isinstance(strip.holder, _Nowhere) for strip in self.strips)

    @property
    def nbytes(self) -> int:
        """Of an idle run: the bytes of its buffers."""
        return self._held if self.tidy_bytes is None else self.tidy_bytes

    @property
    def _held(self) -> int:
        return sum(s.holder.nbytes for s in self.strips if isinstance(s.holder, Buffers))

    def lose(self) -> None:
        """Note that what is in the buffers may not be used any more."""
        for strip in self.strips:
            strip.lose()

    def clear_behind(self, stop: int) -> None:
        """Give blocks a copy of their tokens that go on behind token `stop`: a sequence is about to
        write there, so that the run is in use again. It must be free."""
        self.tidy_bytes = None
        for segment in list(self.segments):
            block = segment.holder() if segment.holder is not None else None
            if block is not None and segment.stop > stop:
                block.detach()

    @property
    def extent(self) -> tuple[int, int]:
        """The first token that a segment refers to, and the one after the last; (0, 0) when none
        does."""
        segments = list(self.segments)
        start = min([segment.start for segment in segments], default=0)
        return start, max([segment.stop for segment in segments], default=0)

    @property
    def array_count(self) -> int:
        """How many arrays it has."""
        return sum(len(strip.holder.keys) + len(strip.holder.values) for strip in self.strips)

    def detach(self) -> bool:
        """Give each block a copy of its tokens, so that the run goes. False where a row needs
        it."""
        holders = [s.holder() if s.holder is not None else None for s in self.segments]
        blocks = [holder for holder in holders if holder is not None]
        if len(blocks) < len(holders):
            return False
        for block in blocks:
            block.detach()
        return True

    def shrink(self, *, wholly: bool = False) -> Iterator[Arrays]:
        """Give back the places of an idle run that no segment refers to, if they are more than a
        fifth of it or `wholly`. Yields the arrays of each layer as they are made, not computed
        yet."""
        start, stop = self.extent
        for strip in self.strips:
            assert isinstance(strip.holder, Buffers)
            places = strip.holder.keys[0].shape[2]
            spare = places - (stop - start)
            self.is_tight = not spare or wholly or spare * 5 > places
            if not spare or not self.is_tight:
                break
            keys, values = (tuple(map(mx.contiguous, own)) for own in strip.arrays(start, stop))
            strip.move(Buffers(keys, values))
            strip.first = start
            yield *keys, *values
        self.tidy_bytes = self._held


class Detachable(Protocol):
    """What has a segment and can do with a copy of its tokens instead: a payload."""

    def detach(self) -> None: ...


class Runs:
    """The runs of one model, as long as a segment refers to them.

    Short idle runs are given up: each block gets a copy of its tokens, in one array for all layers.
    The arrays of each layer of many short conversations would be more than Metal allows.
    """

    def __init__(self, short: int = 0, least: int = GROWTH) -> None:
        """Idle runs of fewer than `short` tokens are given up. Up to `least` tokens are copied
        where they are all that could be referred to."""
        self.short = short
        self.least = least
        self.block_bytes = 0
        """The bytes of all segments that are those of blocks."""
        self._known = WeakSet[TokenRun]()

    def of(self, strips: tuple[Strip, ...]) -> TokenRun:
        """The run of these strips: the one that they are in, or a new one."""
        known = strips[0].run
        run = known() if known is not None else None
        if run is None:
            run = TokenRun(self, strips)
            self._known.add(run)
        return run

    @property
    def idle_bytes(self) -> int:
        """The bytes of the buffers of all idle runs."""
        return sum(run.nbytes for run in self._known if run.is_idle)

    def tidy(self, *, wholly: bool = False) -> None:
        """Give back what idle runs hold and no segment refers to: if it is more than a fifth of a
        run, or `wholly`; and give up short runs, and those with gaps."""
        compute_copies(self._tidied(wholly=wholly))

    def _tidied(self, *, wholly: bool) -> Iterator[mx.array]:
        """The copies of what stays, not computed yet."""
        for run in list(self._known):
            is_tidy = run.tidy_bytes is not None and (run.is_tight or not wholly)
            if is_tidy or not run.is_idle:
                continue
            start, stop = run.extent
            held = sum(segment.stop - segment.start for segment in run.segments)
            if (stop - start < self.short or held * 5 < (stop - start) * 4) and run.detach():
                continue
            for arrays in run.shrink(wholly=wholly):
                yield from arrays

    def lose(self) -> None:
        """Note that what sequences at work hold may not be used any more: a step has failed."""
        for run in list(self._known):
            if not run.is_idle:
                run.lose()


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Segment:
    """Tokens [start, stop) of a run, which keeps them as long as the segment is there. `holder` is
    the block's payload that has it, if it is one."""

    run: TokenRun
    start: int
    stop: int
    holder: "ReferenceType[Detachable] | None" = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = (self.stop - self.start) * self.run.token_bytes
        self.run.segments.add(self)
        self.run.tidy_bytes = None

    def hold(self, payload: "Detachable") -> None:
        """Note that a block's payload has the segment from now on, and nothing else."""
        self.holder = ref(payload)
        self.run.runs.block_bytes += self.nbytes

    def __del__(self) -> None:
        self.run.tidy_bytes = None
        if self.holder is not None:
            self.run.runs.block_bytes -= self.nbytes

    def spans(self) -> list["Span"]:
        """The segment in each layer of full attention, in their order."""
        return [Span(self, strip) for strip in self.run.strips]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Span:
    """A segment in one layer."""

    segment: Segment
    strip: Strip

    @property
    def start(self) -> int:
        return self.segment.start

    @property
    def stop(self) -> int:
        return self.segment.stop

    @property
    def key(self) -> tuple[int, int, int]:
        """Equal for spans of the same tokens: rows attend to these together."""
        return id(self.strip), self.start, self.stop

    def arrays(self) -> tuple[Arrays, Arrays]:
        """Keys and values: views [1, H, stop - start, F]."""
        return self.strip.arrays(self.start, self.stop)

    def before(self, stop: int) -> "Span | None":
        """The part of it that is before token `stop`."""
        if stop >= self.stop:
            return self
        if stop <= self.start:
            return None
        return Span(Segment(self.segment.run, self.start, stop), self.strip)


Spans = tuple[Span, ...]


def joined(pieces: Sequence[tuple[Arrays, Arrays]]) -> tuple[Arrays, Arrays]:
    """Keys and values of pieces of a sequence, in order: one copy of all, or the only piece."""
    if len(pieces) == 1:
        return pieces[0]
    keys, values = (
        tuple(mx.concatenate(list(arrays), axis=2) for arrays in zip(*side, strict=True))
        for side in zip(*pieces, strict=True)
    )
    return keys, values


MOST_SPANS = 4


def referred(lengths: Sequence[int], free: Sequence[bool], least: int) -> int:
    """To how many segments of so many tokens, in order, a row refers. It copies what is behind
    them: attention takes a launch for each, so a short one behind a long one is not worth it,
    unless its run is not `free`, where a copy would be there beside it. Up to `least` tokens are
    copied in any case.

    With each turn of a conversation a segment comes. As what is copied is shorter than what is in
    front of it, each token is copied a few times at most, and segments stay few."""
    count = len(lengths)
    while count > 1 and free[count - 1]:
        is_short = 2 * sum(lengths[count - 1 :]) < lengths[count - 2]
        if not is_short and count <= MOST_SPANS:
            break
        count -= 1
    return 0 if sum(lengths[:count]) <= least else count
