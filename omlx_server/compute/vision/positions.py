"""Positions of the tokens of a prompt with images on three axes: time, rows and columns. Pure.

A text token has one position on all three. The tokens of an image lie on its rows and columns, all
at one time, and the text behind it goes on as if it were as long as its longer side. (Wang et al.,
Qwen2-VL, 2024)
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from omlx_server.compute.vision.towers.grids import Grid, Ints


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """An image in a prompt: its first token is number `start`, and it has `rows` x `columns`."""

    start: int
    rows: int
    columns: int

    @classmethod
    def of(cls, start: int, grid: Grid, merge: int) -> "ImagePlace":
        """Of an image with so many patches, `merge` x `merge` of which are a token."""
        return cls(start, grid[1] // merge, grid[2] // merge)

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def delta(self) -> int:
        """By how much the text behind it is moved."""
        return max(self.rows, self.columns) - self.rows * self.columns


def delta(images: Iterable[ImagePlace]) -> int:
    """The position of a text token behind these images, less its number in the prompt: 0 or
    less."""
    return sum(image.delta for image in images)


def axis_positions(start: int, stop: int, images: Iterable[ImagePlace]) -> Ints:
    """The positions int32 [3, stop - start] of tokens number `start` to before `stop`. `images` are
    those of the prompt in order; those behind `stop` make no difference."""
    numbers = np.arange(start, stop)
    positions = np.stack([numbers] * 3)
    moved = 0
    for image in images:
        inside = (numbers >= image.start) & (numbers < image.stop)
        place, first = numbers[inside] - image.start, image.start + moved
        positions[:, inside] = first
        positions[1, inside] += place // image.columns
        positions[2, inside] += place % image.columns
        positions[:, numbers >= image.stop] += image.delta
        moved += image.delta
    return positions.astype(np.int32)
