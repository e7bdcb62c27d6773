"""Images in a prompt: runs of tokens made of their digests, beyond any vocabulary. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

FIRST_ID = 1 << 30
"""The first token id of images; all are below 2 ** 31."""

_WIDTH = 4  # bytes of an id
_BLOCK = blake2b.MAX_DIGEST_SIZE


def token_ids(digest: bytes, count: int) -> tuple[int, ...]:
    """Return an image's `count` ids: 30 bits each, drawn from the digest."""
    ids: list[int] = []
    for number in range(-(-count * _WIDTH // _BLOCK)):
        drawn = blake2b(digest, salt=number.to_bytes(16, "little")).digest()
        words = (drawn[at : at + _WIDTH] for at in range(0, _BLOCK, _WIDTH))
        ids += (FIRST_ID | int.from_bytes(word, "little") & (FIRST_ID - 1) for word in words)
    return tuple(ids[:count])


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The tokens [start, start + count) of an image."""

    start: int
    count: int
    digest: bytes
    advance: int  # positions that it takes: text after it is so much further
    whole: bool = False  # chunks never split it
    grid: tuple[int, int, int] = (1, 1, 1)
    pixels: Callable[[], object] | None = field(default=None, compare=False, repr=False)
    nbytes: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.count


def images_within(images: Iterable[ImageSpan], start: int, stop: int) -> tuple[ImageSpan, ...]:
    return tuple(image for image in images if image.start < stop and start < image.stop)


def position_shift(images: Iterable[ImageSpan], position: int) -> int:
    """Return how many positions token `position` is ahead of its index."""
    return sum(image.advance - image.count for image in images if image.stop <= position)


def stop_at_image(images: Sequence[ImageSpan], start: int, stop: int) -> int:
    """Return where a chunk from `start` to `stop` must end to split no whole image."""
    for image in images:
        if image.whole and image.start < stop < image.stop:
            return image.start if image.start > start else image.stop
    return stop
