"""Control tokens: added tokens that only a template may write, flagged special or shaped as a
turn marker such as `<｜User｜>`. Unflagged markup such as `<think>` is none."""

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, takewhile

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding import searching
from omlx_server.text.encoding.seams import AROUND, join_exactly

_TURN_MARKER = re.compile(r"<[|｜][^\s<>]+>|<[^\s<>]+[|｜]>|\[/?[A-Z][A-Z0-9_]*\]")


def is_control(token: AddedToken) -> bool:
    return token.special or _TURN_MARKER.fullmatch(token.content) is not None


def random_digits() -> str:
    """Return 24 random digits, which no normalizer changes."""
    return str(10**23 + secrets.randbelow(9 * 10**23))


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the leftmost and, there, the longest of `texts`: a trie, for
    speed."""
    distinct = sorted({text for text in texts if text})
    return re.compile(_alternatives(distinct) if distinct else r"(?!)")


def _alternatives(texts: list[str]) -> str:
    groups = groupby(texts, key=lambda text: text[0])
    return "|".join(_trie_branch(list(group)) for _, group in groups)


def _trie_branch(texts: list[str]) -> str:
    pairs = zip(texts[0], texts[-1], strict=False)  # sorted: what these two share, all share
    prefix = "".join(char for char, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    endings = [text[len(prefix) :] for text in texts]
    nonempty = [ending for ending in endings if ending]
    if not nonempty:
        return re.escape(prefix)
    optional = "?" if len(nonempty) < len(endings) else ""
    return f"{re.escape(prefix)}(?:{_alternatives(nonempty)}){optional}"


class ControlCuts:
    """`tokens`: added tokens of `backend` that it recognises wherever they stand."""

    def __init__(self, backend: Backend, tokens: Sequence[AddedToken]) -> None:
        self._backend = backend
        self._tokens = tokens
        self._longest = max((len(token.content) for token in tokens), default=0)

    def parts(self, text: str) -> Iterator[str]:
        """Return the parts of `text`. Each but the first begins with a control token."""
        start = 0
        for match in searching.find_all(self._pattern, text, 0, reach=self._longest):
            if match.start() > start:
                yield text[start : match.start()]
                start = match.start()
        yield text[start:]

    def prepare(self) -> None:
        """Run the trials ahead of the first text."""
        _ = self._pattern

    @cached_property
    def _pattern(self) -> searching.Pattern:
        groups: dict[tuple[bool, ...], list[str]] = {}
        for token in self._tokens:
            flags = (token.lstrip, token.rstrip, token.single_word, token.normalized)
            groups.setdefault(flags, []).append(token.content)
        # Tokens of the same flags are found alike: one of each group is tried.
        cuttable = [texts for texts in groups.values() if _can_be_cut(self._backend, texts[0])]
        return pattern_of(text for texts in cuttable for text in texts)


def _can_be_cut(backend: Backend, token: str) -> bool:
    lefts = [*AROUND, *(f"{token}{text}" for text in AROUND)]
    pairs = [(left, f"{token}{right}") for left in lefts for right in ("", "a", " b")]
    pairs += [(left, f"{token}{right}") for left in ("a", " ", token) for right in AROUND]
    return join_exactly(backend, pairs)
