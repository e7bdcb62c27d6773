"""Keys and values by reference: where a sequence's tokens are stored, and what refers to them.

    token      0                8                   20        32
    layer 0    |  span          |  strip (a tail)   | unused  |    row of buffers
    layer 1    |  span          |  strip (a tail)   | unused  |    row of buffers
               '-- segment of --'------- run -------'
                  another run

    Buffers    arrays of one layer, with unused places behind the tokens
    Strip      one layer's tokens of one sequence; its buffers change with the group of rows
    TokenRun   the strips of all full-attention layers: what one sequence computed
    Segment    tokens [start, stop) of a run, held by a block of the prefix cache or by a row
    Span       a segment in one layer, read-only
    Tail       a row's own tokens, behind its spans

References back to owners are weak, so a run is freed with its last segment and its sequence.
Positions count from the start of the sequence. Mlx thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from weakref import ReferenceType, WeakSet, ref

import mlx.core as mx

from omlx_server.compute.hardware.device_policy import compute_copies
from omlx_server.compute.kv.schemes.base import Arrays, views
from omlx_server.core.memory.kv import GROWTH

T = TypeVar("T")
MOST_SPANS = 4  # of a row


def referent(reference: ReferenceType[T] | None) -> T | None:
    return reference() if reference is not None else None


class LostTokens(Exception):
    """A failed step wrote to these tokens."""


class Holder(Protocol):
    """Owner of keys and values [R, H, C, F], () before the first token."""

    keys: Arrays
    values: Arrays


@dataclass(slots=True, eq=False, repr=False)
class Buffers:
    """Arrays [1, H, C, F] of one sequence, written by `owner`."""

    keys: Arrays = ()
    values: Arrays = ()
    owner: "ReferenceType[Any] | None" = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.keys, *self.values))

    @property
    def is_idle(self) -> bool:
        return referent(self.owner) is None


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Strip:
    """One layer's tokens from `first` on, in row `place` of `holder`."""

    holder: Holder
    place: int = 0
    first: int = 0
    run: "ReferenceType[TokenRun] | None" = None

    def arrays(self, start: int, stop: int) -> tuple[Arrays, Arrays]:
        """Return views [1, H, stop - start, F]. Raises LostTokens."""
        if isinstance(self.holder, _LostHolder):
            raise LostTokens("the tokens were in a step that failed")
        start, stop = start - self.first, stop - self.first
        keys = views(self.holder.keys, start, stop, self.place)
        return keys, views(self.holder.values, start, stop, self.place)

    @property
    def token_bytes(self) -> int:
        arrays = (*self.holder.keys, *self.holder.values)
        return sum(array.nbytes // (array.shape[0] * array.shape[2]) for array in arrays)

    @property
    def extent(self) -> tuple[int, int]:
        """The tokens [start, stop) that segments refer to."""
        run = referent(self.run)
        return run.extent if run is not None else (self.first, self.first)

    def has_tokens_after(self, stop: int) -> bool:
        """Return whether the strip begins or is referred to behind `stop`."""
        return max(self.extent[1], self.first) > stop

    def move(self, holder: Holder, place: int = 0) -> None:
        self.holder, self.place = holder, place

    def lose(self) -> None:
        self.holder = _LostHolder()


class _LostHolder:
    keys: Arrays = ()
    values: Arrays = ()


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class TokenRun:
    """The tokens that one sequence computed. `is_tight` means tidied, without unused places."""

    strips: tuple[Strip, ...]
    segments: "WeakSet[Segment]" = field(default_factory=WeakSet)
    is_tight: bool = False
    _tidy_bytes: int | None = None  # None in use
    _block_bytes: int | None = None
    _counted: int = 0  # the number of segments when these bytes were noted

    def __post_init__(self) -> None:
        for strip in self.strips:
            strip.run = ref(self)

    @property
    def token_bytes(self) -> int:
        return sum(strip.token_bytes for strip in self.strips)

    @property
    def is_idle(self) -> bool:
        holder = self.strips[0].holder
        return isinstance(holder, Buffers) and holder.is_idle

    @property
    def is_free(self) -> bool:
        """Whether only blocks refer to the run."""
        return self.is_idle and all(segment.holder is not None for segment in self.segments)

    @property
    def is_lost(self) -> bool:
        return any(isinstance(strip.holder, _LostHolder) for strip in self.strips)

    @property
    def nbytes(self) -> int:
        return self._buffer_bytes if self.tidy_bytes is None else self.tidy_bytes

    @property
    def tidy_bytes(self) -> int | None:
        """The size of a tidied run; None in use and after a change of segments."""
        self._notice_freed_segments()
        return self._tidy_bytes

    @property
    def block_bytes(self) -> int:
        """The bytes of segments that blocks hold."""
        self._notice_freed_segments()
        if self._block_bytes is None:
            self._block_bytes = sum(s.nbytes for s in self.segments if s.holder is not None)
        return self._block_bytes

    def _notice_freed_segments(self) -> None:
        if self._counted != len(self.segments):
            self.note_change()

    def note_change(self) -> None:
        """Note that the segments or what they hold changed."""
        self._counted = len(self.segments)
        self._tidy_bytes = self._block_bytes = None

    @property
    def _buffer_bytes(self) -> int:
        return sum(s.holder.nbytes for s in self.strips if isinstance(s.holder, Buffers))

    def lose(self) -> None:
        for strip in self.strips:
            strip.lose()

    def clear_behind(self, stop: int) -> None:
        """Detach blocks beyond `stop`, before a sequence writes there. The run must be free."""
        self.note_change()
        for segment in list(self.segments):
            block = referent(segment.holder)
            if block is not None and segment.stop > stop:
                block.detach()

    @property
    def extent(self) -> tuple[int, int]:
        segments = list(self.segments)
        start = min([segment.start for segment in segments], default=0)
        return start, max([segment.stop for segment in segments], default=0)

    @property
    def array_count(self) -> int:
        return sum(len(strip.holder.keys) + len(strip.holder.values) for strip in self.strips)

    def detach(self) -> bool:
        """Detach all blocks, so that the run is freed. Return False if a row needs it."""
        blocks = [referent(segment.holder) for segment in self.segments]
        if any(block is None for block in blocks):
            return False
        for block in filter(None, blocks):
            block.detach()
        return True

    def shrink(self, *, wholly: bool = False) -> Iterator[Arrays]:
        """Drop an idle run's unused places, if over a fifth or `wholly`. Yields what to compute."""
        start, stop = self.extent
        for strip in self.strips:
            assert isinstance(strip.holder, Buffers)
            places = strip.holder.keys[0].shape[2]
            spare = places - (stop - start)
            self.is_tight = not spare or wholly or spare * 5 > places
            if not spare or not self.is_tight:
                break
            keys, values = (tuple(map(mx.contiguous, side)) for side in strip.arrays(start, stop))
            strip.move(Buffers(keys, values))
            strip.first = start
            yield *keys, *values
        self._notice_freed_segments()
        self._tidy_bytes = self._buffer_bytes


class Detachable(Protocol):
    def detach(self) -> None: ...


class Runs:
    """The runs of one model. Short idle ones are detached: Metal limits the number of arrays."""

    def __init__(self, short: int = 0, least: int = GROWTH) -> None:
        """Idle runs below `short` tokens are given up. At most `least` tokens are always copied."""
        self.short = short
        self.least = least
        self._runs = WeakSet[TokenRun]()

    def of(self, strips: tuple[Strip, ...]) -> TokenRun:
        run = referent(strips[0].run)
        if run is None:
            run = TokenRun(strips)
            self._runs.add(run)
        return run

    @property
    def idle_bytes(self) -> int:
        return sum(run.nbytes for run in self._runs if run.is_idle)

    @property
    def block_bytes(self) -> int:
        """The bytes of all segments that blocks hold."""
        return sum([run.block_bytes for run in self._runs])

    def tidy(self, *, wholly: bool = False) -> None:
        """Free unused places, short runs and runs with gaps, all of idle runs."""
        compute_copies(self._copies_of_tidying(wholly=wholly))

    def _copies_of_tidying(self, *, wholly: bool) -> Iterator[mx.array]:
        for run in list(self._runs):
            is_tidy = run.tidy_bytes is not None and (run.is_tight or not wholly)
            if is_tidy or not run.is_idle:
                continue
            start, stop = run.extent
            tokens = sum(segment.stop - segment.start for segment in run.segments)
            is_short, has_gaps = stop - start < self.short, tokens * 5 < (stop - start) * 4
            if (is_short or has_gaps) and run.detach():
                continue
            for arrays in run.shrink(wholly=wholly):
                yield from arrays

    def lose(self) -> None:
        for run in list(self._runs):
            if not run.is_idle:
                run.lose()


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Segment:
    """Tokens [start, stop) of a run. `holder` is a block's payload, if one has the segment."""

    run: TokenRun
    start: int
    stop: int
    holder: "ReferenceType[Detachable] | None" = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = (self.stop - self.start) * self.run.token_bytes
        self.run.segments.add(self)
        self.run.note_change()

    def hold(self, payload: "Detachable") -> None:
        self.holder = ref(payload)
        self.run.note_change()

    def spans(self) -> list["Span"]:
        return [Span(self, strip) for strip in self.run.strips]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Span:
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
        """Equal for spans of the same tokens."""
        return id(self.strip), self.start, self.stop

    def arrays(self) -> tuple[Arrays, Arrays]:
        return self.strip.arrays(self.start, self.stop)


Spans = tuple[Span, ...]


def spans_before(spans: Spans, stop: int) -> Spans:
    kept = [span for span in spans if span.start < stop]
    if kept and kept[-1].stop > stop:
        last = kept[-1]
        kept[-1] = Span(Segment(last.segment.run, last.start, stop), last.strip)
    return tuple(kept)


def end_of(spans: Spans) -> int:
    return spans[-1].stop if spans else 0


def join_pieces(pieces: Sequence[tuple[Arrays, Arrays]]) -> tuple[Arrays, Arrays]:
    if len(pieces) == 1:
        return pieces[0]
    keys, values = (
        tuple(mx.concatenate(list(arrays), axis=2) for arrays in zip(*side, strict=True))
        for side in zip(*pieces, strict=True)
    )
    return keys, values


def count_referred(lengths: Sequence[int], free: Sequence[bool], least: int) -> int:
    """Return how many leading segments a row refers to; it copies the others. Each costs a launch,
    so it is copied if less than half as long as the one before, or beyond `MOST_SPANS`, unless its
    run is not `free`. Up to `least` tokens are always copied."""
    count = len(lengths)
    while count > 1 and free[count - 1]:
        is_short = 2 * sum(lengths[count - 1 :]) < lengths[count - 2]
        if not is_short and count <= MOST_SPANS:
            break
        count -= 1
    return 0 if sum(lengths[:count]) <= least else count
