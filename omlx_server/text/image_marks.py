"""Images in the messages of a prompt. A mark, a run of digits that no client can guess, becomes the
model's markup after the chat template.

    message    What is 483...000000?
    rendering  ...What is <vision><pad></vision>?
    ids        ... 9 7 P P P P 8 3

A placeholder token, here <pad>, stands for each run of image tokens.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from omlx_server.core.images import FIRST_ID, ImageSpan, token_ids
from omlx_server.errors import BadRequest, LoadFailed, TooManyTokens
from omlx_server.text.encoding import searching
from omlx_server.text.encoding.controls import random_digits
from omlx_server.text.tokenizer import Tokenizer

_DIGITS = 6
_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
_GEMMA3 = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"


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
        self._nonce = random_digits()
        self._pattern = re.compile(rf"{self._nonce}(\d{{{_DIGITS}}})")
        self._placeholders: list[ImagePlaceholder] = []

    def add(self, image: ImagePlaceholder) -> str:
        self._placeholders.append(image)
        return f"{self._nonce}{len(self._placeholders) - 1:0{_DIGITS}d}"

    def split(self, text: str) -> list[str]:
        """Return texts and marks in turn, beginning and ending with a text, which may be empty."""
        pieces, position = list[str](), 0
        for match in searching.find_all(self._pattern, text, 0, reach=self._reach):
            pieces += (text[position : match.start()], match[0])
            position = match.end()
        return [*pieces, text[position:]]

    def remove_marks(self, text: str) -> str:
        return self._replace_marks(text, lambda image: "")

    def count_tokens(self, text: str) -> int:
        return sum(run.count for image in self._placeholders_in(text) for run in image.runs)

    def encode(
        self, rendering: str, encode: Callable[[str, int | None], list[int]], most: int | None
    ) -> list[int]:
        """Return the token ids of a rendered template with its images. Raises TooManyTokens for
        more than `most`, BadRequest where a mark is not shown as it is."""
        runs = [run for image in self._placeholders_in(rendering) for run in image.runs]
        # The encoder sees one token for each run.
        extra = sum(run.count - 1 for run in runs)
        if most is not None and extra >= most:
            raise TooManyTokens(most, extra + len(runs))
        text = self._replace_marks(rendering, lambda image: image.markup)
        try:
            ids = encode(text, None if most is None else most - extra)
        except TooManyTokens as error:
            raise TooManyTokens(most or 0, error.at_least + extra) from None
        if ids.count(self._placeholder) != len(runs):
            raise BadRequest("the chat template can't show these images", param="messages")
        runs_left = iter(runs)
        filled: list[int] = []
        for id in ids:
            run = next(runs_left) if id == self._placeholder else None
            filled += (id,) if run is None else token_ids(run.digest, run.count)
        return filled

    def spans_in(self, tokens: Sequence[int]) -> tuple[ImageSpan, ...]:
        """Return the runs of image tokens among `tokens`, and where they start."""
        runs = {token_ids(run.digest, 1): run for image in self._placeholders for run in image.runs}
        spans, position = list[ImageSpan](), 0
        while position < len(tokens):
            if tokens[position] < FIRST_ID:
                position += 1
                continue
            span = replace(runs[(tokens[position],)], start=position)
            spans.append(span)
            position = span.stop
        return tuple(spans)

    def with_placeholders(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens with one placeholder for each token of an image."""
        return [self._placeholder if token >= FIRST_ID else token for token in tokens]

    @property
    def _reach(self) -> int:
        return len(self._nonce) + _DIGITS

    def _placeholders_in(self, text: str) -> Iterator[ImagePlaceholder]:
        for match in searching.find_all(self._pattern, text, 0, reach=self._reach):
            yield self._placeholders[int(match[1])]

    def _replace_marks(self, text: str, by: Callable[[ImagePlaceholder], str]) -> str:
        def replacement(match: searching.Match) -> str:
            return by(self._placeholders[int(match[1])])

        return searching.replace_all(self._pattern, replacement, text, reach=self._reach)


Tiles = tuple[int, int]
"""Rows and columns of the tiles that an image is cut into; (0, 0) for none."""


@dataclass(frozen=True, slots=True)
class ImageMarkup:
    """The markup of one model. `write`: that of an image with such tiles. `placeholder`: the id of
    the token that stands for a run."""

    write: Callable[[Tiles], str]
    placeholder: int

    @classmethod
    def of(cls, family: str, tokenizer: Tokenizer) -> "ImageMarkup":
        """Raises LoadFailed if the tokenizer lacks the family's tokens."""
        write, controls = _FAMILIES[family]
        ids = {text: tokenizer.token_id(text) for text in controls}
        missing = next((text for text, id in ids.items() if id is None), None)
        placeholder = ids[controls[0]]
        if missing is not None or placeholder is None:
            raise LoadFailed(f"the model's prompts can't show images: there is no token {missing}")
        return cls(write, placeholder)


def _idefics3(tiles: Tiles) -> str:
    rows, columns = tiles
    around = "<fake_token_around_image>"
    lines = [
        "".join(f"{around}<row_{row + 1}_col_{column + 1}><image>" for column in range(columns))
        for row in range(rows)
    ]
    front = "".join(f"{line}\n" for line in lines) + "\n" if rows else ""
    return f"{front}{around}<global-img><image>{around}"


# Beside the writer: tokens that the model must have, the placeholder first.
_FAMILIES: Mapping[str, tuple[Callable[[Tiles], str], tuple[str, ...]]] = {
    "qwen": (lambda tiles: _QWEN, ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")),
    "gemma3": (lambda tiles: _GEMMA3, ("<image_soft_token>", "<start_of_image>", "<end_of_image>")),
    "idefics3": (_idefics3, ("<image>", "<fake_token_around_image>")),
}
