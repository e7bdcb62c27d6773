"""Thoughts before constrained answers, and thoughts of bounded length, token by token."""

from collections.abc import Iterable

import pytest

from omlx_server.core.request import Constraint
from omlx_server.text.answers.bad_words import BadWords, spellings
from omlx_server.text.reasoning.constraint import ReasoningMarkers, ThinkingConstraint
from omlx_server.text.reasoning.style import Opening, Style
from omlx_server.text.tokenizer import Tokenizer
from tests.text import makers
from tests.text.conftest import Load

THINK = Style("<think>", "</think>", "\n</think>\n\n")


class Fixed:
    """A constraint that wants exactly these tokens; it notes what it is told."""

    def __init__(self, wanted: Iterable[int], size: int) -> None:
        self.wanted = list(wanted)
        self.told: list[int] = []
        self._size = size

    @property
    def done(self) -> bool:
        return len(self.told) == len(self.wanted)

    @property
    def problem(self) -> str | None:
        return None if self.told == self.wanted[: len(self.told)] else "wrong"

    @property
    def too_costly(self) -> bool:
        return False

    takes_drafts = True

    def copy(self) -> "Fixed":
        copied = Fixed(self.wanted, self._size)
        copied.told = list(self.told)
        return copied

    def mask(self) -> bytes:
        words = bytearray((self._size + 31) // 32 * 4)
        for token in self.wanted[len(self.told) :][:1]:
            words[token // 8] |= 1 << token % 8
        return bytes(words)

    def take(self, token: int) -> None:
        self.told.append(token)

    def forced(self) -> list[int]:
        return self.wanted[len(self.told) :]


@pytest.fixture
def tokenizer(load: Load) -> Tokenizer:
    return load("byte_level")


def allowed(constraint: Constraint, size: int) -> set[int]:
    mask = constraint.mask()
    return {t for t in range(size) if t // 8 < len(mask) and mask[t // 8] >> t % 8 & 1}


def marks_of(
    tokenizer: Tokenizer, style: Style = THINK, *, starts: bool = True
) -> ReasoningMarkers:
    return ReasoningMarkers(style, tokenizer, tokenizer.vocab_size, starts=starts)


def take(constraint: Constraint, tokens: Iterable[int]) -> None:
    for token in tokens:
        constraint.take(token)


def test_within_a_thought_all_but_the_end_is_allowed(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size
    inner = Fixed(tokenizer.encode("yes"), size)
    constraint = ThinkingConstraint(marks_of(tokenizer), Opening.WITHIN, inner, None)
    assert allowed(constraint, size) == set(range(size)) - tokenizer.eos_ids
    assert constraint.forced() == ()
    take(constraint, tokenizer.encode("Hm, </thin"))
    assert inner.told == []
    take(constraint, tokenizer.encode("k>"))
    texts = {token: tokenizer.token_bytes(token) for token in range(size)}
    blanks = {token for token, text in texts.items() if text and not text.strip(b" \t\r\n")}
    for token in tokenizer.encode("\n\n"):
        assert allowed(constraint, size) == {inner.wanted[0]} | blanks
        assert token in blanks and list(constraint.forced()) == []
        take(constraint, [token])
    # Two tokens are enough: a model that has lost its thread writes nothing else.
    assert inner.told == [] and list(constraint.forced()) == inner.wanted
    take(constraint, inner.wanted)
    assert inner.told == inner.wanted and constraint.done and constraint.problem is None


def test_behind_a_thought_an_answer_may_begin_at_once(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size
    for text in ("yes", "\nyes"):  # white space of its own is the answer's
        inner = Fixed(tokenizer.encode(text), size)
        constraint = ThinkingConstraint(marks_of(tokenizer), Opening.WITHIN, inner, None)
        take(constraint, tokenizer.encode("Hm</think>"))
        take(constraint.copy(), inner.wanted[:1])
        take(constraint, inner.wanted)
        assert inner.told == inner.wanted and constraint.done


def test_a_free_answer_is_masked_nowhere_but_at_the_end_of_its_thought(
    tokenizer: Tokenizer,
) -> None:
    """What looks like a call in a thought is none, so the answer can't end there."""
    size = tokenizer.vocab_size
    inner = Fixed(tokenizer.encode("~yes"), size)
    constraint = ThinkingConstraint(marks_of(tokenizer), Opening.WITHIN, inner, None, free=True)
    for token in tokenizer.encode("Hm, ~hm</think>"):
        assert allowed(constraint, size) == set(range(size)) - tokenizer.eos_ids
        assert not constraint.forced()
        take(constraint, [token])
    assert list(constraint.forced()) == inner.wanted


def test_a_thought_may_begin_or_not(load: Load) -> None:
    tokenizer = load("byte_level")
    start = tokenizer.token_id("<|im_start|>")
    assert start is not None
    style = Style("<|im_start|>", "</think>", "</think>")
    size = tokenizer.vocab_size
    for begins in (True, False):
        inner = Fixed(tokenizer.encode("yes"), size)
        constraint = ThinkingConstraint(marks_of(tokenizer, style), Opening.FREE, inner, None)
        assert allowed(constraint, size) == {inner.wanted[0], start}
        assert constraint.forced() == ()
        take(constraint, [start] if begins else inner.wanted[:1])
        assert inner.told == ([] if begins else inner.wanted[:1])
        assert len(allowed(constraint, size)) == (size - len(tokenizer.eos_ids) if begins else 1)


def test_a_prompt_past_the_thought_allows_none(tokenizer: Tokenizer) -> None:
    inner = Fixed(tokenizer.encode("yes"), tokenizer.vocab_size)
    constraint = ThinkingConstraint(marks_of(tokenizer), Opening.PAST, inner, None)
    assert constraint.mask() == inner.mask() and constraint.forced() == inner.wanted


def test_a_model_that_does_not_think_begins_none(tokenizer: Tokenizer) -> None:
    inner = Fixed(tokenizer.encode("yes"), tokenizer.vocab_size)
    constraint = ThinkingConstraint(marks_of(tokenizer, starts=False), Opening.FREE, inner, None)
    assert constraint.mask() == inner.mask()


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_ends_a_thought(tokenizer: Tokenizer, budget: int) -> None:
    markers, size = marks_of(tokenizer), tokenizer.vocab_size
    constraint = ThinkingConstraint(markers, Opening.WITHIN, None, budget)
    for _ in range(budget):
        assert constraint.forced() == () and len(allowed(constraint, size)) == size
        constraint.take(5)
    assert tuple(constraint.forced()) == markers.close
    assert tokenizer.decode(markers.close) == "\n</think>\n\n"
    for token in markers.close:
        assert allowed(constraint, size) == {token}
        constraint.take(token)
    assert len(allowed(constraint, size)) == size
    assert not constraint.done and constraint.problem is None and constraint.forced() == ()


def test_a_thought_that_ends_in_time_meets_no_budget(tokenizer: Tokenizer) -> None:
    constraint = ThinkingConstraint(marks_of(tokenizer), Opening.WITHIN, None, 1000)
    take(constraint, [*tokenizer.encode("Hm.</think>"), *tokenizer.encode("yes") * 1000])
    assert constraint.forced() == ()


def test_a_copy_goes_on_by_itself(tokenizer: Tokenizer) -> None:
    inner = Fixed(tokenizer.encode("yes"), tokenizer.vocab_size)
    constraint = ThinkingConstraint(marks_of(tokenizer), Opening.WITHIN, inner, 5)
    constraint.take(5)
    other = constraint.copy()
    take(other, [5] * 4)
    assert constraint.forced() == () and other.forced() != ()
    take(other, [*other.forced(), *inner.wanted])
    assert other.done and inner.told == [] and not constraint.done


# -- bad words -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", makers.GENERATIVE)
def test_a_bad_word_never_comes(load: Load, family: str) -> None:
    tokenizer = load(family)
    size = tokenizer.vocab_size
    words = spellings(tokenizer, ["hello", "the"])
    constraint = BadWords(words, size, None)
    for word in words:
        walking = constraint.copy()
        take(walking, [7, *word[:-1]])
        assert word[-1] not in allowed(walking, size)
        assert len(allowed(walking, size)) >= size - len(words)
    assert not constraint.done and constraint.problem is None and constraint.forced() == ()


def test_a_part_of_a_bad_word_is_not_bad(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size
    constraint = BadWords([(3, 4, 5), (9,)], size, None)
    assert allowed(constraint, size) == set(range(size)) - {9}
    take(constraint, [4, 3, 4])
    assert allowed(constraint, size) == set(range(size)) - {9, 5}
    take(constraint, [6])
    assert allowed(constraint, size) == set(range(size)) - {9}


def test_a_grammar_goes_before_a_ban(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size
    inner = Fixed([9, 4], size)
    constraint = BadWords([(9,), (4,)], size, inner)
    assert allowed(constraint, size) == {9}
    take(constraint, [9])
    assert constraint.forced() == [4] and inner.told == [9]
    take(constraint, [4])
    assert constraint.done
