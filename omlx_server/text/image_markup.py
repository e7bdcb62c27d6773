"""The markup of an image in the prompts of each family of vision models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from omlx_server.errors import LoadFailed
from omlx_server.text.tokenizer import Tokenizer

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


_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
_GEMMA3 = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"


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
