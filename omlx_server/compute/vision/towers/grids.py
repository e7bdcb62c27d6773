"""Places of an image's patches, in Qwen-VL's order: the `merge` x `merge` patches of a token row
by row; tokens row by row; then the next frame."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Grid = tuple[int, int, int]
"""Frames, rows and columns of patches. An image has one frame."""


def check_grid(grid: Grid, merge: int, patches: int) -> None:
    """Raise ValueError if patches do not fill the grid or cannot be merged."""
    frames, rows, columns = grid
    if min(grid) < 1 or rows % merge or columns % merge:
        raise ValueError(f"a grid of {grid} can't be merged {merge} by {merge}")
    if frames * rows * columns != patches:
        raise ValueError(f"{patches} patches are not those of a grid of {grid}")


def patch_places(grid: Grid, merge: int) -> Ints:
    """Return row and column [N, 2] of each patch, in merge order."""
    frames, rows, columns = grid
    blocks = rows // merge, merge, columns // merge, merge
    rows_and_columns = [
        axis.reshape(blocks).transpose(0, 2, 1, 3).reshape(-1) for axis in np.indices(grid[1:])
    ]
    return np.tile(np.stack(rows_and_columns, axis=1), (frames, 1)).astype(np.int32)


def rotary_angles(places: Ints, head_dim: int) -> Floats:
    """Return the angles [N, head_dim / 2] of patches at `places` by row, then by column."""
    quarter = head_dim // 2
    exponents = np.arange(0, quarter, 2, dtype=np.float32) / np.float32(quarter)
    frequencies = (1.0 / np.float32(10_000) ** exponents).astype(np.float32)
    angles = places[:, :, None].astype(np.float32) * frequencies
    return angles.reshape(len(places), -1)


def interpolation(places: Ints, grid: Grid, side: int) -> tuple[Ints, Floats]:
    """Return the four learned positions, of side x side, around each patch, and their shares: both
    [4, N]. The shares are bilinear."""
    neighbours, weights = list[Ints](), list[Floats]()
    for axis, size in enumerate(grid[1:]):
        patches = places[:, axis].astype(np.float32)
        scaled = patches * np.float32(side - 1) / np.float32(max(size - 1, 1))
        low = np.floor(scaled)
        high_share = (scaled - low).astype(np.float32)
        low_index = low.astype(np.int32)
        neighbours.append(np.stack([low_index, np.minimum(low_index + 1, side - 1)]))
        weights.append(np.stack([1 - high_share, high_share]))
    rows, columns = neighbours
    indices = rows[:, None] * side + columns[None]
    shares = weights[0][:, None] * weights[1][None]
    return indices.reshape(4, -1), shares.reshape(4, -1)


def window_order(grid: Grid, merge: int, window: int) -> tuple[Ints, Ints]:
    """Order tokens by windows of at most window x window tokens, row by row. Return their
    numbers in merge order, int32 [T], and the windows' sizes in tokens."""
    shape = grid[0], grid[1] // merge, grid[2] // merge
    frames, rows, columns = np.indices(shape)
    windows_down, windows_across = -(-shape[1] // window), -(-shape[2] // window)
    window_rows = frames * windows_down + rows // window
    windows = (window_rows * windows_across + columns // window).reshape(-1)
    order = np.argsort(windows, kind="stable")
    return order.astype(np.int32), np.bincount(windows).astype(np.int32)
