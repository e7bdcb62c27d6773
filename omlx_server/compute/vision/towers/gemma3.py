"""The vision tower of Gemma 3: SigLIP, and a projector that averages neighbouring patches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gemma3_text import RMSNorm

from omlx_server.compute.vision.towers.config import check, outer_size, text_width
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.compute.vision.towers.siglip import DEFAULT_SIZES, SiglipConfig, SiglipTower
from omlx_server.core.work import Work


@dataclass(frozen=True, slots=True)
class Gemma3VisionConfig:
    """Sizes of the tower. An image becomes `side` x `side` tokens, `out` wide."""

    siglip: SiglipConfig
    side: int
    out: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Gemma3VisionConfig":
        """Raises ModelUnavailable for sizes that do not fit."""
        siglip = SiglipConfig.read(config, DEFAULT_SIZES)
        tokens = outer_size(config, "mm_tokens_per_image", 256)
        side = int(tokens**0.5)
        fits = side**2 == tokens and siglip.side % side == 0
        check(fits, "its patches do not fit mm_tokens_per_image")
        return cls(siglip, side, text_width(config, 2304))


class Projector(nn.Module):
    def __init__(self, config: Gemma3VisionConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        hidden = config.siglip.hidden
        self._side = config.side
        self.mm_input_projection_weight = mx.zeros((hidden, config.out))
        self.mm_soft_emb_norm = RMSNorm(hidden, config.siglip.eps)

    def __call__(self, x: mx.array) -> mx.array:
        """Return embeddings [B, side * side, out] of tokens for patches [B, N, hidden]."""
        count, patches, hidden = x.shape
        width = int(patches**0.5) // self._side  # of a square, in patches
        squares = x.reshape(count, self._side, width, self._side, width, hidden)
        pooled = squares.mean(axis=(2, 4)).reshape(count, -1, hidden)
        output: mx.array = self.mm_soft_emb_norm(pooled) @ self.mm_input_projection_weight
        return output


class Gemma3Tower(SiglipTower):
    def __init__(self, config: Gemma3VisionConfig) -> None:
        super().__init__(config.siglip)
        self.config = config
        self.projector = Projector(config)

    def tokens(self, grid: Grid) -> int:
        return grid[0] * self.config.side**2

    def computing(self, pixels: mx.array, grid: Grid) -> Work[Features]:
        """Compute the features of an image and its crops. `pixels` are [crops, H, W, channels];
        `grid` is crops, rows, columns. Raises ValueError."""
        siglip = self.config.siglip
        self.check_pixels(pixels, grid)
        if grid[1:] != (siglip.side, siglip.side):
            raise ValueError(f"images of this model have {siglip.side} x {siglip.side} patches")
        hidden = yield from self.vision_model.computing(pixels)
        return Features(self.projector(hidden).reshape(-1, self.config.out)).computed()
