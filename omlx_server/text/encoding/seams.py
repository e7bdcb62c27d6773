"""Finds where a text can be cut, so that the tokens of its pieces are the tokens of the whole:
between two characters that no token holds beside each other. Trials find tokenizers for which
this fails. Any thread."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from omlx_server.errors import NoSeam
from omlx_server.text.encoding import searching
from omlx_server.text.encoding.vocabulary import keeps_letters, tokens_of

# Neighbours that splitting rules tell apart: letters by case and script, digits, marks, blanks.
_NEIGHBOURS = tuple("asZ7.,'\"-_(<é好😀 \n")
AROUND = ("", *_NEIGHBOURS, *map("".join, product(_NEIGHBOURS, repeat=2)))
"""What can stand beside a cut when it is tried out."""
_REACH_CHARS = 4
LONGEST = 1 << 18
"""In bytes: a piece has at most so many. The library takes up to 250 times the memory."""

# Letters and marks beyond ASCII that every Unicode form leaves as they are.
_LETTERS = "À-ÖØ-öø-ıĴ-ľŁ-ňŊ-žẠ-ỹΑ-ΡΣ-ωА-яЁёԱ-Ֆա-ֆא-תء-يअ-हก-ะა-ჰぁ-ゖァ-ヺ一-鿿가-힣"
_MARKS = "、。，！？：；（）《》「」『』“”«»،؛؟।"
_SOME_LETTERS = ("é", "Я", "א", "ع", "अ", "ก", "あ", "한", "好")


@dataclass(frozen=True, slots=True)
class _SeamKind:
    """A place where texts may be cut. In its patterns `<L>` and `<M>` stand for letters and marks
    beyond ASCII."""

    pattern: str
    in_no_token: str  # ASCII
    left: tuple[str, ...]  # what trials put there
    right: tuple[str, ...]
    gap: str = ""  # dropped by the cut

    def within(self, letters: str, marks: str) -> str:
        return self.pattern.replace("<L>", letters).replace("<M>", marks)


_BEFORE_A_WORD = _SeamKind(
    r"(?<=[A-Za-z0-9<L>])(?= [A-Za-z0-9<L>])",
    r"[A-Za-z0-9] ",
    ("a", "Z", "7", *_SOME_LETTERS),
    (" b", " Q", " 3", *(f" {letter}" for letter in _SOME_LETTERS)),
)
# For tokenizers that put a blank before each text themselves.
_BETWEEN_WORDS = _SeamKind(
    r"(?<=[A-Za-z0-9<L>]) (?=[A-Za-z0-9<L>])",
    r"[A-Za-z0-9] ",
    ("a", "Z", "7", *_SOME_LETTERS),
    ("b", "Q", "3", *_SOME_LETTERS),
    " ",
)
_BETWEEN_LINES = _SeamKind(
    r'(?<=[A-Za-z0-9.,;:!?)}\]"><L><M>]\n)(?=[A-Za-z<L>])',
    r"\n[A-Za-z]",
    ("a\n", ".\n", "7\n", "。\n", "好\n"),
    ("b", "Q", *_SOME_LETTERS),
)
_BEFORE_A_MARK = _SeamKind(
    r'(?<=[A-Za-z0-9<L>])(?=[",:;.({\[<=<M>])',
    r'[A-Za-z0-9][",:;.({\[<=]',
    ("a", "Z", "7", *_SOME_LETTERS),
    ('"', ",", ":", ";", ".", "(", "{", "[", "<", "=", *_MARKS),
)


class Seams:
    """The seams of one tokenizer. A piece ends at the first seam behind `size` characters."""

    def __init__(self, backend: Backend, *, size: int) -> None:
        added = list(backend.get_added_tokens_decoder().values())
        letters, marks = (_LETTERS, _MARKS) if keeps_letters(backend) else ("", "")
        kinds = list(_candidate_kinds(added))
        forbidden = {kind: re.compile(kind.in_no_token) for kind in kinds}
        self._joined_bytes = set[tuple[int, int]]()
        for token in tokens_of(backend):
            text = token.decode("latin-1")
            kinds = [kind for kind in kinds if not forbidden[kind].search(text)]
            if not text.isascii():
                self._joined_bytes.update(pairwise(token))
        exact = [kind for kind in kinds if self._is_exact(backend, kind, letters)]
        patterns = [kind.within(letters, marks) for kind in exact]
        self._pattern = re.compile("|".join(patterns) or r"(?!)")
        self._piece_chars = size

    def pieces(self, text: str) -> Iterator[str]:
        """Return the pieces of `text`. Raises NoSeam where one would be longer than LONGEST."""
        start = 0
        while len(text) - start > self._piece_chars:
            seam = self._next_seam(text, start + self._piece_chars, start + LONGEST)
            if seam is None:
                break
            yield self._check_length(text[start : seam.start()])
            start = seam.end()
        yield self._check_length(text[start:])

    def _next_seam(self, text: str, start: int, stop: int) -> searching.Match | None:
        for match in searching.find_all(self._pattern, text, start, reach=_REACH_CHARS, stop=stop):
            if self._are_apart(text[match.start() - 1], text[match.start()]):
                return match
        return None

    def _check_length(self, piece: str) -> str:
        if 4 * len(piece) > LONGEST and len(piece.encode()) > LONGEST:
            raise NoSeam(LONGEST)
        return piece

    def _are_apart(self, left: str, right: str) -> bool:
        if left.isascii() and right.isascii():
            return True
        return (left.encode()[-1], right.encode()[0]) not in self._joined_bytes

    def _is_exact(self, backend: Backend, kind: _SeamKind, letters: str) -> bool:
        lefts, rights = (
            [text for text in texts if letters or text.isascii()]
            for texts in (kind.left, kind.right)
        )
        pairs = [
            (f"{before}{left}", right)
            for left in lefts
            for before in _neighbours_of(left)
            for right in _pick_two(rights, left)
        ]
        pairs += [
            (left, f"{right}{after}")
            for right in rights
            for after in _neighbours_of(right)
            for left in _pick_two(lefts, right)
        ]
        apart = [pair for pair in pairs if self._are_apart(pair[0][-1], (kind.gap + pair[1])[0])]
        return join_exactly(backend, apart, kind.gap)


def _neighbours_of(text: str) -> Sequence[str]:
    return AROUND if text.isascii() else ("", *_NEIGHBOURS)


def _pick_two(texts: Sequence[str], beside: str) -> Sequence[str]:
    return texts[:2] if beside.isascii() else (texts[0], texts[-1])


def _candidate_kinds(added: Sequence[AddedToken]) -> Iterator[_SeamKind]:
    swallows_blanks = any(token.lstrip or token.rstrip for token in added)
    after_word = any(token.rstrip and token.content[-1:].isalnum() for token in added)
    starts_word = any(token.content[:1].isalnum() for token in added)
    is_allowed = {
        _BEFORE_A_WORD: not after_word,
        _BETWEEN_WORDS: not (swallows_blanks or starts_word),
        _BETWEEN_LINES: not swallows_blanks,
        _BEFORE_A_MARK: True,
    }
    for kind, allowed in is_allowed.items():
        seam = re.compile(kind.within(_LETTERS, _MARKS))
        if allowed and not any(seam.search(token.content) for token in added):
            yield kind


def join_exactly(backend: Backend, pairs: Sequence[tuple[str, str]], gap: str = "") -> bool:
    """Return whether for each pair the tokens of both texts are those of the joined text."""
    alone = _ids_of_each(backend, {text for pair in pairs for text in pair})
    together = _ids_of_each(backend, {f"{left}{gap}{right}" for left, right in pairs})
    return all(
        alone[left] + alone[right] == together[f"{left}{gap}{right}"] for left, right in pairs
    )


def _ids_of_each(backend: Backend, texts: Iterable[str]) -> dict[str, list[int]]:
    texts_of_pairs = list(texts)
    encodings = backend.encode_batch_fast(texts_of_pairs, add_special_tokens=False)
    return {text: one.ids for text, one in zip(texts_of_pairs, encodings, strict=True)}
