"""A thought before a constrained answer, and a thought of bounded length.

    <think> any tokens but the end </think> white space, what the inner constraint allows

Made on any thread, then owned by one (the mlx thread). Without an inner constraint, or with one
that leaves the text free, nothing is masked or forced: then this only counts, and ends a thought
that grew beyond its budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from omlx_server.core.request import Constraint
from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tokenizer import Tokenizer

# Behind a thought, in one token; and how many such tokens. Models write one or two.
_MOST_BLANKS = 4
_MOST_GAPS = 2


class Marks:
    """The markers of one model's thoughts as tokens. Immutable. `size`: the width of its logits.

    `start` is None where the marker is more than one token: there a thought never begins.
    """

    def __init__(self, style: Style, tokenizer: Tokenizer, size: int, *, starts: bool) -> None:
        start = tokenizer.encode(style.start)
        self.start = start[0] if starts and len(start) == 1 else None
        self.end = style.end.encode()
        self.close = tuple(tokenizer.encode(style.close))
        self.channels = bool(style.channels)
        self.all = _mask(size, range(size))
        ends = {token for token in tokenizer.eos_ids if token < size}
        self.inside = _mask(size, [token for token in range(size) if token not in ends])
        self._tokenizer = tokenizer
        blank = [token for token in range(min(size, tokenizer.vocab_size)) if self._is_blank(token)]
        self.blank = _mask(size, blank)

    def bytes_of(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def _is_blank(self, token: int) -> bool:
        text = self.bytes_of(token)
        return 0 < len(text) <= _MOST_BLANKS and not text.strip(b" \t\r\n")


class _Phase(Enum):
    BEGINNING = auto()
    THINKING = auto()
    CLOSING = auto()
    GAP = auto()
    ANSWER = auto()


@dataclass(slots=True)
class _State:
    phase: _Phase
    tail: bytes = b""  # of the thought: no longer than its end marker
    count: int = 0  # tokens of the thought
    closing: tuple[int, ...] = ()  # tokens that must come before the answer
    gaps: int = 0  # tokens of white space behind the thought


class Thinking:
    """`budget`: the most tokens of a thought; None for any number. `may_end`: the answer may end
    within a thought, as one does that ends with a call in a channel of its own. `free`: `inner`
    leaves the text free, and `calls` are the tokens that begin a call, which ends a thought too."""

    def __init__(
        self,
        marks: Marks,
        opening: Opening,
        inner: Constraint | None,
        budget: int | None,
        *,
        may_end: bool = False,
        free: bool = False,
        calls: frozenset[int] = frozenset(),
    ) -> None:
        self._marks = marks
        self._inside = marks.all if may_end or free or inner is None else marks.inside
        self._inner = inner
        bare = free or inner is None or marks.channels
        self._behind = _Phase.ANSWER if bare else _Phase.GAP
        self._calls = calls
        self._budget = budget
        self._state = _State(_first_phase(marks, opening))
        self._spend(0)

    @property
    def done(self) -> bool:
        answers = self._state.phase is _Phase.ANSWER and self._inner is not None
        return answers and self._answer.done

    @property
    def problem(self) -> str | None:
        return None if self._inner is None else self._inner.problem

    @property
    def too_costly(self) -> bool:
        return self._inner is not None and self._inner.too_costly

    def copy(self) -> "Thinking":
        copied = Thinking.__new__(Thinking)
        copied._marks, copied._inside = self._marks, self._inside
        copied._budget, copied._behind, copied._calls = self._budget, self._behind, self._calls
        copied._inner = None if self._inner is None else self._inner.copy()
        state = self._state
        copied._state = replace(state)
        return copied

    def mask(self) -> bytes:
        match self._state.phase:
            case _Phase.CLOSING:
                return _mask(len(self._marks.all) * 8, self._state.closing[:1])
            case _Phase.THINKING:
                return self._inside
            case _Phase.BEGINNING if self._inner is not None and self._marks.start is not None:
                return _with(self._inner.mask(), self._marks.start)
            case _Phase.GAP:
                return _either(self._answer.mask(), self._marks.blank)
        return self._marks.all if self._inner is None else self._inner.mask()

    def take(self, token: int) -> None:
        match self._state.phase:
            case _Phase.BEGINNING if token == self._marks.start:
                self._state.phase = _Phase.THINKING
                self._spend(0)
            case _Phase.BEGINNING:
                self._state.phase = _Phase.ANSWER
                self._answered(token)
            case _Phase.THINKING:
                self._thought(token)
            case _Phase.CLOSING:
                self._close(self._state.closing[1:], _Phase.ANSWER)
            case _Phase.GAP if self._is_gap(token):
                self._state.gaps += 1
                full = self._state.gaps >= _MOST_GAPS
                self._state.phase = _Phase.ANSWER if full else _Phase.GAP
            case _Phase.GAP:
                self._state.phase = _Phase.ANSWER
                self._answered(token)
            case _Phase.ANSWER:
                self._answered(token)

    def forced(self) -> Sequence[int]:
        match self._state.phase:
            case _Phase.CLOSING:
                return self._state.closing
            case _Phase.ANSWER if self._inner is not None:
                return self._inner.forced()
        return ()

    @property
    def _answer(self) -> Constraint:
        assert self._inner is not None
        return self._inner

    def _answered(self, token: int) -> None:
        if self._inner is not None:
            self._inner.take(token)

    def _is_gap(self, token: int) -> bool:
        """White space that the answer itself does not begin with."""
        return _holds(self._marks.blank, token) and not _holds(self._answer.mask(), token)

    def _thought(self, token: int) -> None:
        tail = self._state.tail + self._marks.bytes_of(token)
        if token in self._calls:
            self._close((), _Phase.ANSWER)
            self._answered(token)
        elif self._marks.end in tail:
            # A grammar knows nothing of the white space that models write here.
            self._close((), self._behind)
        else:
            self._state.tail = tail[-len(self._marks.end) :]
            self._spend(1)

    def _spend(self, tokens: int) -> None:
        self._state.count += tokens
        if self._state.phase is not _Phase.THINKING or self._budget is None:
            return
        if self._state.count >= self._budget:
            self._close(self._marks.close, _Phase.ANSWER)

    def _close(self, tokens: tuple[int, ...], then: _Phase) -> None:
        self._state.closing = tokens
        self._state.phase = _Phase.CLOSING if tokens else then


def _first_phase(marks: Marks, opening: Opening) -> _Phase:
    if opening is Opening.PAST:
        return _Phase.ANSWER
    # With channels the answer, too, has a header, which no grammar knows.
    within = opening is Opening.WITHIN or marks.channels
    return _Phase.THINKING if within else _Phase.BEGINNING


def _mask(size: int, tokens: Sequence[int]) -> bytes:
    """See `core.request.Constraint.mask`."""
    words = bytearray((size + 31) // 32 * 4)
    for token in tokens:
        words[token // 8] |= 1 << token % 8
    return bytes(words)


def _with(mask: bytes, token: int) -> bytes:
    words = bytearray(mask) + bytes(max(0, token // 32 * 4 + 4 - len(mask)))
    words[token // 8] |= 1 << token % 8
    return bytes(words)


def _either(one: bytes, other: bytes) -> bytes:
    size = max(len(one), len(other))
    bits = int.from_bytes(one, "little") | int.from_bytes(other, "little")
    return bits.to_bytes(size, "little")


def _holds(mask: bytes, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)
