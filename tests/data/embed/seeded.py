"""Weights that two programs can make alike: from names and shapes, by numpy's frozen generator."""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Weights = dict[str, npt.NDArray[np.float32]]


def make_weights(shapes: Mapping[str, Sequence[int]]) -> Weights:
    """Large enough that attention is not flat and norms are not alike."""
    return {name: _one(name, tuple(shape)) for name, shape in shapes.items()}


def _one(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) == 1:
        centre = 1.0 if name.lower().endswith("norm.weight") else 0.0
        return (centre + 0.2 * noise).astype(np.float32)
    scale = 1.0 if "embed" in name else 1.5 / shape[-1] ** 0.5
    return (scale * noise).astype(np.float32)
