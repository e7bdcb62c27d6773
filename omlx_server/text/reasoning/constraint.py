"""A constraint for answers that begin with a thought, whose length it can bound.

    <think> any tokens but the end </think> white space, what the inner constraint allows

Made on any thread, then owned by one at a time. Without an inner constraint, or with `free`, it
only ends thoughts that used up their budget.
"""

from collections.abc import Sequence
from enum import Enum, auto

from omlx_server.core.request import Constraint
from omlx_server.text.grammar.masks import all_of, either, holds, mask_of
from omlx_server.text.grammar.wrappers import Anything, Around
from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tokenizer import Tokenizer

# Behind a thought, in one token; and how many such tokens. Models write one or two.
_MOST_BLANKS = 4
_MOST_GAPS = 2


class ReasoningMarkers:
    """The markers of one model's thoughts as tokens. `start` is None where the answer never
    begins a thought."""

    def __init__(self, style: Style, tokenizer: Tokenizer, size: int, *, starts: bool) -> None:
        start = tokenizer.encode(style.start)
        self.start = start[0] if starts and len(start) == 1 else None
        self.ends = tuple(end.encode() for end in style.ends)
        self.close = tuple(tokenizer.encode(style.close))
        self.all = all_of(size)
        ends = {token for token in tokenizer.eos_ids if token < size}
        self.inside = mask_of(size, [token for token in range(size) if token not in ends])
        self._tokenizer = tokenizer
        blank = [token for token in range(min(size, tokenizer.vocab_size)) if self._is_blank(token)]
        self.blank = mask_of(size, blank)

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


_FIRST = {
    Opening.PAST: _Phase.ANSWER,
    Opening.WITHIN: _Phase.THINKING,
    Opening.FREE: _Phase.BEGINNING,
}


class ThinkingConstraint(Around):
    """`budget`: the most tokens of a thought; None for any number. `free`: `inner` leaves the
    text free."""

    def __init__(
        self,
        markers: ReasoningMarkers,
        opening: Opening,
        inner: Constraint | None,
        budget: int | None,
        *,
        free: bool = False,
    ) -> None:
        super().__init__(Anything(markers.all) if inner is None else inner)
        self._markers = markers
        free = free or inner is None
        self._inside = markers.all if inner is None else markers.inside
        self._behind = _Phase.ANSWER if free else _Phase.GAP
        self._budget = budget
        self._phase = _FIRST[opening]
        self._tail = b""  # of the thought: no longer than its longest end marker
        self._count = 0  # tokens of the thought
        self._closing: tuple[int, ...] = ()  # tokens that must come before the answer
        self._gaps = 0  # tokens of white space behind the thought
        self._spend(0)

    @property
    def done(self) -> bool:
        return self._phase is _Phase.ANSWER and self._inner.done

    def mask(self) -> bytes:
        match self._phase:
            case _Phase.CLOSING:
                return mask_of(len(self._markers.all) * 8, self._closing[:1])
            case _Phase.THINKING:
                return self._inside
            case _Phase.BEGINNING if (start := self._markers.start) is not None:
                return either(self._inner.mask(), mask_of(start + 1, [start]))
            case _Phase.GAP:
                return either(self._inner.mask(), self._markers.blank)
        return self._inner.mask()

    def take(self, token: int) -> None:
        match self._phase:
            case _Phase.BEGINNING if token == self._markers.start:
                self._phase = _Phase.THINKING
                self._spend(0)
            case _Phase.THINKING:
                self._thought(token)
            case _Phase.CLOSING:
                self._close(self._closing[1:], _Phase.ANSWER)
            case _Phase.GAP if self._is_gap(token):
                self._gaps += 1
                full = self._gaps >= _MOST_GAPS
                self._phase = _Phase.ANSWER if full else _Phase.GAP
            case _Phase.BEGINNING | _Phase.GAP | _Phase.ANSWER:
                self._phase = _Phase.ANSWER
                self._inner.take(token)

    def forced(self) -> Sequence[int]:
        match self._phase:
            case _Phase.CLOSING:
                return self._closing
            case _Phase.ANSWER:
                return self._inner.forced()
        return ()

    def _is_gap(self, token: int) -> bool:
        return holds(self._markers.blank, token) and not holds(self._inner.mask(), token)

    def _thought(self, token: int) -> None:
        tail = self._tail + self._markers.bytes_of(token)
        if any(end in tail for end in self._markers.ends):
            # A grammar knows nothing of the white space that models write here.
            self._close((), self._behind)
        else:
            self._tail = tail[-max(map(len, self._markers.ends)) :]
            self._spend(1)

    def _spend(self, tokens: int) -> None:
        self._count += tokens
        if self._phase is not _Phase.THINKING or self._budget is None:
            return
        if self._count >= self._budget:
            self._close(self._markers.close, _Phase.ANSWER)

    def _close(self, tokens: tuple[int, ...], then: _Phase) -> None:
        self._closing = tokens
        self._phase = _Phase.CLOSING if tokens else then
