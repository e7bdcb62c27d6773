"""The vision tower of Idefics3 and SmolVLM: SigLIP, and a projector that concatenates patches."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from omlx_server.compute.vision.towers.config import check, outer_size, text_width
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.grids import Grid, Ints
from omlx_server.compute.vision.towers.siglip import SiglipConfig, SiglipTower
from omlx_server.core.work import Work

# From transformers' Idefics3VisionConfig and SmolVLMVisionConfig.
_DEFAULTS = {
    "num_hidden_layers": 12,
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "patch_size": 32,
    "image_size": 224,
}


@dataclass(frozen=True, slots=True)
class Idefics3VisionConfig:
    """`merge` x `merge` patches become a token, `out` wide."""

    siglip: SiglipConfig
    merge: int
    out: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Idefics3VisionConfig":
        """Raises ModelUnavailable for sizes that do not fit."""
        siglip = SiglipConfig.read(config, _DEFAULTS)
        merge = outer_size(config, "scale_factor", 2)
        check(siglip.side % merge == 0, "its patches do not fit scale_factor")
        return cls(siglip, merge, text_width(config, 4096))


class Connector(nn.Module):
    def __init__(self, config: Idefics3VisionConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._merge = config.merge
        values = config.siglip.hidden * config.merge**2
        self.modality_projection = nn.Module()
        self.modality_projection.proj = nn.Linear(values, config.out, bias=False)

    def __call__(self, x: mx.array, grid: Grid) -> mx.array:
        """Return embeddings [B * N / merge^2, out] of tokens for patches [B, N, hidden]."""
        count, rows, columns = grid
        merge = self._merge
        blocks = x.reshape(count, rows // merge, merge, columns // merge, merge, -1)
        merged = blocks.transpose(0, 1, 3, 2, 4, 5).reshape(-1, x.shape[-1] * merge**2)
        output: mx.array = self.modality_projection.proj(merged)
        return output


class Idefics3Tower(SiglipTower):
    def __init__(self, config: Idefics3VisionConfig) -> None:
        super().__init__(config.siglip)
        self.config = config
        self.connector = Connector(config)

    def tokens(self, grid: Grid) -> int:
        return prod(grid) // self.config.merge**2

    def computing(
        self, pixels: mx.array, grid: Grid, seen: NDArray[np.bool_] | None = None
    ) -> Work[Features]:
        """Compute the features of an image's tiles. `pixels` are [tiles, H, W, channels]; `seen`
        [tiles, rows, columns] is False for padding. Raises ValueError."""
        siglip, merge = self.config.siglip, self.config.merge
        self.check_pixels(pixels, grid)
        if min(grid) < 1 or grid[1] % merge or grid[2] % merge:
            raise ValueError(f"a grid of {grid} can't be merged {merge} by {merge}")
        real = np.ones(grid, dtype=np.bool_) if seen is None else seen
        positions = mx.array(np.stack([_positions(tile, siglip.side) for tile in real]))
        mask = None if real.all() else mx.array(real.reshape(grid[0], 1, 1, -1))
        hidden = yield from self.vision_model.computing(pixels, positions, mask)
        return Features(self.connector(hidden, grid)).computed()


def _positions(real: NDArray[np.bool_], side: int) -> Ints:
    """Return int32 [N]. In float32, whose rounding decides between neighbours."""
    step = 1 / side
    bounds = (step + step * np.arange(side - 1)).astype(np.float32)
    rows, columns = (
        np.searchsorted(bounds, _shares(size, int(count)), side="right")
        for size, count in ((real.shape[0], real[:, 0].sum()), (real.shape[1], real[0].sum()))
    )
    return np.where(real, rows[:, None] * side + columns, 0).reshape(-1).astype(np.int32)


def _shares(size: int, count: int) -> NDArray[np.float32]:
    at = np.arange(size, dtype=np.float32) * np.float32(1 / count)
    shares: NDArray[np.float32] = np.minimum(at, np.float32(1 - 1e-6))
    return shares
