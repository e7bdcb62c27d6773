"""Positions of a prompt's tokens by time, row and column (Wang et al., Qwen2-VL, 2024). The text
behind an image continues as if the image were as long as its longer side."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from omlx_server.compute.vision.towers.grids import Grid, Ints


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """An image of `rows` x `columns` tokens, from token `start` on."""

    start: int
    rows: int
    columns: int

    @classmethod
    def of(cls, start: int, grid: Grid, merge: int) -> "ImagePlace":
        """`merge` x `merge` patches of the grid are a token."""
        return cls(start, grid[1] // merge, grid[2] // merge)

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def delta(self) -> int:
        """The shift of text behind the image: 0 or less."""
        return max(self.rows, self.columns) - self.rows * self.columns


def axis_positions(start: int, stop: int, images: Iterable[ImagePlace]) -> Ints:
    """Return positions int32 [3, stop - start]. `images` are in order."""
    tokens = np.arange(start, stop)
    positions = np.stack([tokens] * 3)
    shift = 0  # by the images before
    for image in images:
        inside = (tokens >= image.start) & (tokens < image.stop)
        number_in_image = tokens[inside] - image.start
        positions[:, inside] = image.start + shift
        positions[1, inside] += number_in_image // image.columns
        positions[2, inside] += number_in_image % image.columns
        positions[:, tokens >= image.stop] += image.delta
        shift += image.delta
    return positions.astype(np.int32)
