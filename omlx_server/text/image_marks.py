"""Images in the messages of a prompt. A mark, a run of digits that no client can guess, becomes the
model's markup after the chat template.

    message    What is 483...000000?
    rendering  ...What is <vision><pad></vision>?
    ids        ... 9 7 P P P P 8 3

A placeholder token, here <pad>, stands for each run of image tokens.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from omlx_server.core.images import FIRST_ID, ImageSpan, token_ids
from omlx_server.errors import BadRequest, TooManyTokens
from omlx_server.text.encoding import searching
from omlx_server.text.encoding.controls import nonce

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class ImagePlaceholder:
    """How a prompt shows one image: `markup` holds the placeholder once for each of the `runs`
    of image tokens."""

    markup: str
    runs: tuple[ImageSpan, ...]


class ImageMarks:
    """The images of one request. Used by one thread at a time."""

    def __init__(self, placeholder: int) -> None:
        self._placeholder = placeholder
        self._nonce = nonce()
        self._pattern = re.compile(rf"{self._nonce}(\d{{{_DIGITS}}})")
        self._shown: list[ImagePlaceholder] = []

    def add(self, shown: ImagePlaceholder) -> str:
        self._shown.append(shown)
        return f"{self._nonce}{len(self._shown) - 1:0{_DIGITS}d}"

    def split(self, text: str) -> list[str]:
        """Return texts and marks in turn, beginning and ending with a text, which may be empty."""
        pieces, at = list[str](), 0
        for match in searching.every(self._pattern, text, 0, reach=self._reach):
            pieces += (text[at : match.start()], match[0])
            at = match.end()
        return [*pieces, text[at:]]

    def without(self, text: str) -> str:
        return self._replaced(text, lambda shown: "")

    def tokens(self, text: str) -> int:
        return sum(run.count for shown in self._marked(text) for run in shown.runs)

    def encoded(
        self, rendering: str, encode: Callable[[str, int | None], list[int]], most: int | None
    ) -> list[int]:
        """Return the token ids of a rendered template with its images. Raises TooManyTokens for
        more than `most`, BadRequest where a mark is not shown as it is."""
        runs = [run for shown in self._marked(rendering) for run in shown.runs]
        extra = sum(run.count - 1 for run in runs)
        if most is not None and extra >= most:
            raise TooManyTokens(most, extra + len(runs))
        text = self._replaced(rendering, lambda shown: shown.markup)
        try:
            ids = encode(text, None if most is None else most - extra)
        except TooManyTokens as error:
            raise TooManyTokens(most or 0, error.at_least + extra) from None
        if ids.count(self._placeholder) != len(runs):
            raise BadRequest("the chat template can't show these images", param="messages")
        left = iter(runs)
        filled: list[int] = []
        for id in ids:
            filled += _ids(next(left)) if id == self._placeholder else (id,)
        return filled

    def placed(self, tokens: Sequence[int]) -> tuple[ImageSpan, ...]:
        """Return the runs of image tokens among `tokens`, and where they start."""
        runs = {token_ids(run.digest, 1): run for shown in self._shown for run in shown.runs}
        spans, at = list[ImageSpan](), 0
        while at < len(tokens):
            if tokens[at] < FIRST_ID:
                at += 1
                continue
            run = replace(runs[(tokens[at],)], start=at)
            spans.append(run)
            at = run.stop
        return tuple(spans)

    def bare(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens with one placeholder for each token of an image."""
        return [self._placeholder if token >= FIRST_ID else token for token in tokens]

    @property
    def _reach(self) -> int:
        return len(self._nonce) + _DIGITS

    def _marked(self, text: str) -> Iterator[ImagePlaceholder]:
        for match in searching.every(self._pattern, text, 0, reach=self._reach):
            yield self._shown[int(match[1])]

    def _replaced(self, text: str, by: Callable[[ImagePlaceholder], str]) -> str:
        return searching.replaced(
            self._pattern, lambda match: by(self._shown[int(match[1])]), text, reach=self._reach
        )


def _ids(run: ImageSpan) -> tuple[int, ...]:
    return token_ids(run.digest, run.count)
