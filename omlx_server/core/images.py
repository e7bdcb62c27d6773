"""Images in a prompt, as far as the core knows them: tokens of their own. Pure.

An image stands in a prompt as so many tokens, which are made of its digest. So the key of each
block says which image it holds, and a hit behind an image is one behind that image. Their ids
are beyond any vocabulary: no model has an embedding for them, and none samples them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

FIRST_ID = 1 << 30
"""The token ids of images begin here, and end below 2 ** 31."""

_WIDTH = 4  # bytes of an id
_BLOCK = blake2b.MAX_DIGEST_SIZE


def token_ids(digest: bytes, count: int) -> tuple[int, ...]:
    """The ids of the `count` tokens of an image. Each has 30 bits of its own, drawn from the
    digest: images that differ share none but by a chance of 2 ** -30 for each."""
    ids: list[int] = []
    for number in range(-(-count * _WIDTH // _BLOCK)):
        drawn = blake2b(digest, salt=number.to_bytes(16, "little")).digest()
        words = (drawn[at : at + _WIDTH] for at in range(0, _BLOCK, _WIDTH))
        ids += (FIRST_ID | int.from_bytes(word, "little") & (FIRST_ID - 1) for word in words)
    return tuple(ids[:count])


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image in a prompt: its tokens are [start, start + count). `digest` is that of its pixels
    as they were prepared. Text after it is `advance` positions further than text before it, which
    is `count` where positions have one dimension. Chunks don't end within an image that is
    `whole`, because its tokens see each other in both directions. `pixels` makes what the tower
    takes, float32, and takes a while: `grid` is their shape in patches, `nbytes` their size."""

    start: int
    count: int
    digest: bytes
    advance: int
    whole: bool = False
    grid: tuple[int, int, int] = (1, 1, 1)
    pixels: Callable[[], object] | None = field(default=None, compare=False, repr=False)
    nbytes: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.count


def within(images: Iterable[ImageSpan], start: int, stop: int) -> tuple[ImageSpan, ...]:
    """The images that have tokens among [start, stop)."""
    return tuple(image for image in images if image.start < stop and start < image.stop)


def shift(images: Iterable[ImageSpan], position: int) -> int:
    """By how much the positions of text at token `position` are ahead of its number of tokens
    because of the images before it: often below 0."""
    return sum(image.advance - image.count for image in images if image.stop <= position)


def uncut(images: Sequence[ImageSpan], start: int, stop: int) -> int:
    """Where a chunk from `start` ends that should end at `stop`, so that it cuts no image that is
    whole: before that image, or behind it if the chunk begins with it."""
    for image in images:
        if image.whole and image.start < stop < image.stop:
            return image.start if image.start > start else image.stop
    return stop
