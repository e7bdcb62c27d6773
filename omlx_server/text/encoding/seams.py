"""Where a text can be cut, so that the tokens of its pieces are the tokens of the whole.

A seam is a place between two characters that no token of the vocabulary holds beside each other, so
that nothing is ever merged over it. Whether the tokenizer splits, normalises and finds its added
tokens in the same way on both sides is tried out with every kind of neighbour; a kind of seam for
which it does not is not used. Immutable after creation; any thread.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding import searching

# Neighbours that splitting rules tell apart: letters by case and script, digits, marks, blanks.
_NEIGHBOURS = (
    "a",
    "s",
    "Z",
    "7",
    ".",
    ",",
    "'",
    '"',
    "-",
    "_",
    "(",
    "<",
    "é",
    "好",
    "😀",
    " ",
    "\n",
)
AROUND = ("", *_NEIGHBOURS, *map("".join, product(_NEIGHBOURS, repeat=2)))
"""What can stand beside a cut when it is tried out."""
_REACH = 4


@dataclass(frozen=True, slots=True)
class _Kind:
    """`pattern` matches at the place of the cut; what it consumes belongs to neither piece.
    `pair`: what no token may hold. `left` and `right`: texts that end and begin at the cut."""

    pattern: str
    pair: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    glue: str = ""


_BEFORE_A_WORD = _Kind(
    r"(?<=[A-Za-z0-9])(?= [A-Za-z0-9])", r"[A-Za-z0-9] ", ("a", "Z", "7"), (" b", " Q", " 3")
)
# For tokenizers that put a blank before each text themselves.
_BETWEEN_WORDS = _Kind(
    r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])", r"[A-Za-z0-9] ", ("a", "Z", "7"), ("b", "Q", "3"), " "
)
_LINE = _Kind(
    r'(?<=[A-Za-z0-9.,;:!?)}\]">]\n)(?=[A-Za-z])', r"\n[A-Za-z]", ("a\n", ".\n", "7\n"), ("b", "Q")
)
_BEFORE_A_MARK = _Kind(
    r'(?<=[A-Za-z0-9])(?=[",:;.({\[<=])',
    r'[A-Za-z0-9][",:;.({\[<=]',
    ("a", "Z", "7"),
    ('"', ",", ":", ";", ".", "(", "{", "[", "<", "="),
)


class Seams:
    """`tokens`: the texts of the vocabulary's tokens, without the added ones. `size`: a piece ends
    at the first seam behind so many characters."""

    def __init__(self, backend: Backend, tokens: Iterable[str], *, size: int) -> None:
        added = list(backend.get_added_tokens_decoder().values())
        kinds = list(_candidates(added))
        pairs = {kind: re.compile(kind.pair) for kind in kinds}
        for token in tokens:
            kinds = [kind for kind in kinds if not pairs[kind].search(token)]
        kinds = [kind for kind in kinds if _holds(backend, kind)]
        self._pattern = re.compile("|".join(kind.pattern for kind in kinds) or r"(?!)")
        self._size = size

    def pieces(self, text: str) -> Iterator[str]:
        """The pieces of `text`, in order. Each but the last ends at the first seam after `size`
        characters, so one without a seam can be of any length."""
        start = 0
        while len(text) - start > self._size:
            seam = searching.first(self._pattern, text, start + self._size, reach=_REACH)
            if seam is None:
                break
            yield text[start : seam.start()]
            start = seam.end()
        yield text[start:]


def _candidates(added: Sequence[AddedToken]) -> Iterator[_Kind]:
    """Kinds that no added token would be cut by, or swallow blanks over."""
    swallows = any(token.lstrip or token.rstrip for token in added)
    after_word = any(token.rstrip and token.content[-1:].isalnum() for token in added)
    starts_word = any(token.content[:1].isalnum() for token in added)
    wanted = {
        _BEFORE_A_WORD: not after_word,
        _BETWEEN_WORDS: not (swallows or starts_word),
        _LINE: not swallows,
        _BEFORE_A_MARK: True,
    }
    for kind, allowed in wanted.items():
        inside = re.compile(kind.pattern)
        if allowed and not any(inside.search(token.content) for token in added):
            yield kind


def _holds(backend: Backend, kind: _Kind) -> bool:
    """Whether pieces give the tokens of the whole, whatever stands around the cut."""
    lefts = [f"{before}{left}" for left in kind.left for before in AROUND]
    rights = [f"{right}{after}" for right in kind.right for after in AROUND]
    pairs = [(left, right) for left in lefts for right in kind.right[:2]]
    pairs += [(left, right) for left in kind.left[:2] for right in rights]
    return are_exact(backend, pairs, kind.glue)


def are_exact(backend: Backend, pairs: Sequence[tuple[str, str]], glue: str = "") -> bool:
    """Whether for each pair the tokens of both texts are those of the whole text, which has `glue`
    between them."""
    alone = _ids(backend, {text for pair in pairs for text in pair})
    wholes = _ids(backend, {f"{left}{glue}{right}" for left, right in pairs})
    return all(
        alone[left] + alone[right] == wholes[f"{left}{glue}{right}"] for left, right in pairs
    )


def _ids(backend: Backend, texts: Iterable[str]) -> dict[str, list[int]]:
    asked = list(texts)
    found = backend.encode_batch_fast(asked, add_special_tokens=False)
    return {text: one.ids for text, one in zip(asked, found, strict=True)}
