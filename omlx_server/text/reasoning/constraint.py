"""A constraint for answers that begin with a thought, whose length it can bound.

    <think> any tokens but the end </think> white space, what the inner constraint allows

Made on any thread, then owned by one at a time. Without an inner constraint, or with `free`, it
only ends thoughts that used up their budget.
"""

from collections.abc import Sequence
from enum import Enum, auto

from omlx_server.core.request import Constraint
from omlx_server.text.grammar.constraint import allows, full_mask, mask_of, union
from omlx_server.text.grammar.wrappers import ConstraintWrapper, FixedMask
from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tokenizer import Tokenizer

# White space behind a thought: of one token, and how many tokens. Models write one or two.
_MOST_BLANK_BYTES = 4
_MOST_GAP_TOKENS = 2


class ReasoningMarkers:
    """The markers of one model's thoughts as tokens. `start` is None where the answer never
    begins a thought."""

    def __init__(self, style: Style, tokenizer: Tokenizer, size: int, *, starts: bool) -> None:
        start = tokenizer.encode(style.start)
        self.start = start[0] if starts and len(start) == 1 else None
        self.ends = tuple(end.encode() for end in style.ends)
        self.close = tuple(tokenizer.encode(style.close))
        self.full_mask = full_mask(size)
        self.thought_mask = mask_of(size, set(range(size)) - tokenizer.eos_ids)
        self._tokenizer = tokenizer
        self.blank_mask = mask_of(
            size, filter(self._is_blank, range(min(size, tokenizer.vocab_size)))
        )

    def bytes_of(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def _is_blank(self, token: int) -> bool:
        text = self.bytes_of(token)
        return 0 < len(text) <= _MOST_BLANK_BYTES and not text.strip(b" \t\r\n")


class _Phase(Enum):
    """The part that the next token belongs to. GAP: white space behind a thought."""

    BEGINNING = auto()
    THINKING = auto()
    CLOSING = auto()
    GAP = auto()
    ANSWER = auto()


_FIRST_PHASES = {
    Opening.PAST: _Phase.ANSWER,
    Opening.WITHIN: _Phase.THINKING,
    Opening.FREE: _Phase.BEGINNING,
}


class ThinkingConstraint(ConstraintWrapper):
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
        super().__init__(FixedMask(markers.full_mask) if inner is None else inner)
        self._markers = markers
        self._mask_in_thought = markers.full_mask if inner is None else markers.thought_mask
        is_free = free or inner is None
        self._phase_behind_thought = _Phase.ANSWER if is_free else _Phase.GAP
        self._budget = budget
        self._phase = _FIRST_PHASES[opening]
        self._last_bytes = b""  # of the thought: no longer than its longest end marker
        self._thought_tokens = 0
        self._closing: tuple[int, ...] = ()  # tokens that must come before the answer
        self._gap_tokens = 0  # tokens of white space behind the thought
        self._check_budget()

    @property
    def done(self) -> bool:
        return self._phase is _Phase.ANSWER and self._inner.done

    def mask(self) -> bytes:
        match self._phase:
            case _Phase.CLOSING:
                return mask_of(len(self._markers.full_mask) * 8, self._closing[:1])
            case _Phase.THINKING:
                return self._mask_in_thought
            case _Phase.BEGINNING if (start := self._markers.start) is not None:
                return union(self._inner.mask(), mask_of(start + 1, [start]))
            case _Phase.GAP:
                return union(self._inner.mask(), self._markers.blank_mask)
        return self._inner.mask()

    def take(self, token: int) -> None:
        match self._phase:
            case _Phase.BEGINNING if token == self._markers.start:
                self._phase = _Phase.THINKING
                self._check_budget()
            case _Phase.THINKING:
                self._take_in_thought(token)
            case _Phase.CLOSING:
                self._leave_thought(self._closing[1:], _Phase.ANSWER)
            case _Phase.GAP if self._is_gap(token):
                self._gap_tokens += 1
                is_last = self._gap_tokens >= _MOST_GAP_TOKENS
                self._phase = _Phase.ANSWER if is_last else _Phase.GAP
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
        return allows(self._markers.blank_mask, token) and not allows(self._inner.mask(), token)

    def _take_in_thought(self, token: int) -> None:
        tail = self._last_bytes + self._markers.bytes_of(token)
        if any(end in tail for end in self._markers.ends):
            self._leave_thought((), self._phase_behind_thought)
        else:
            self._last_bytes = tail[-max(map(len, self._markers.ends)) :]
            self._thought_tokens += 1
            self._check_budget()

    def _check_budget(self) -> None:
        if self._phase is not _Phase.THINKING or self._budget is None:
            return
        if self._thought_tokens >= self._budget:
            self._leave_thought(self._markers.close, _Phase.ANSWER)

    def _leave_thought(self, closing: tuple[int, ...], then: _Phase) -> None:
        self._closing = closing
        self._phase = _Phase.CLOSING if closing else then
