"""Cuts texts before control tokens, where the tokens of the parts are the tokens of the whole.
Trials find the tokens that allow no cut. Any thread."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from omlx_server.text.encoding import searching
from omlx_server.text.encoding.controls import pattern_of
from omlx_server.text.encoding.seams import AROUND, join_exactly


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
