"""The SigLIP encoder of Gemma 3 and Idefics3 (SmolVLM)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.attention.all_to_all import attend, encoder_shape
from omlx_server.compute.vision.towers.blocks import TowerMlp
from omlx_server.compute.vision.towers.config import VisionFields, check
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.compute.vision.towers.slices import Slices
from omlx_server.core.memory.encoder import EncoderShape
from omlx_server.core.work import Work

# The sizes in transformers' SiglipVisionConfig.
DEFAULT_SIZES = {
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "patch_size": 16,
    "image_size": 224,
}


@dataclass(frozen=True, slots=True)
class SiglipConfig:
    """Sizes of the encoder. Positions are learned for an image of `side` x `side` patches."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    channels: int
    patch: int
    side: int
    eps: float
    activation: str

    @property
    def kernel(self) -> tuple[int, ...]:
        return self.channels, self.patch, self.patch

    @classmethod
    def read(cls, config: Mapping[str, Any], defaults: Mapping[str, int]) -> "SiglipConfig":
        """`defaults` has sizes that may be missing. Raises ModelUnavailable."""
        fields = VisionFields(config)
        sizes = {name: fields.size(name, default=default) for name, default in defaults.items()}
        read = cls(
            layers=sizes["num_hidden_layers"],
            hidden=sizes["hidden_size"],
            intermediate=sizes["intermediate_size"],
            heads=sizes["num_attention_heads"],
            channels=fields.size("num_channels", default=3),
            patch=sizes["patch_size"],
            side=sizes["image_size"] // sizes["patch_size"],
            eps=fields.number("layer_norm_eps", 1e-6),
            activation=fields.activation("gelu_pytorch_tanh"),
        )
        check(read.hidden % read.heads == 0, "hidden_size does not fit num_attention_heads")
        check(read.side > 0, "image_size is smaller than a patch")
        return read


class SiglipEmbeddings(nn.Module):
    def __init__(self, config: SiglipConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._patch = config.patch
        self.patch_embedding = nn.Linear(prod(config.kernel), config.hidden)
        self.position_embedding = nn.Embedding(config.side**2, config.hidden)

    def __call__(self, pixels: mx.array, positions: mx.array | None) -> mx.array:
        """Return [B, N, hidden] for images [B, H, W, channels]. `positions` int32 [B, N] number
        the learned ones; None counts up."""
        count, height, width, channels = pixels.shape
        patch = self._patch
        shape = count, height // patch, patch, width // patch, patch, channels
        patches = pixels.reshape(shape).transpose(0, 1, 3, 5, 2, 4)
        values = patches.reshape(count, -1, channels * patch**2)
        embedded = self.patch_embedding(values.astype(self.patch_embedding.weight.dtype))
        numbers = mx.arange(values.shape[1]) if positions is None else positions
        output: mx.array = embedded + self.position_embedding(numbers)
        return output


class SiglipAttention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._heads = heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)

    def __call__(self, x: mx.array, seen: mx.array | None) -> mx.array:
        """`seen` bool [B, 1, 1, N] is False for padding."""
        count, patches, hidden = x.shape
        width = hidden // self._heads
        queries, keys, values = (
            project(x).reshape(count, patches, self._heads, width).transpose(0, 2, 1, 3)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = attend(queries, keys, values, seen)
        output: mx.array = self.out_proj(attended.transpose(0, 2, 1, 3).reshape(x.shape))
        return output


class SiglipLayer(nn.Module):
    def __init__(self, config: SiglipConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer_norm1 = nn.LayerNorm(config.hidden, eps=config.eps)
        self.self_attn = SiglipAttention(config.hidden, config.heads)
        self.layer_norm2 = nn.LayerNorm(config.hidden, eps=config.eps)
        self.mlp = TowerMlp(config.hidden, config.intermediate, config.activation)

    def __call__(self, x: mx.array, seen: mx.array | None) -> mx.array:
        x = x + self.self_attn(self.layer_norm1(x), seen)
        output: mx.array = x + self.mlp(self.layer_norm2(x))
        return output


class Siglip(nn.Module):
    """Weights have the names of checkpoints; embeddings.patch_embedding is linear here."""

    def __init__(self, config: SiglipConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.embeddings = SiglipEmbeddings(config)
        self.encoder = nn.Module()
        self.encoder.layers = [SiglipLayer(config) for _ in range(config.layers)]
        self.post_layernorm = nn.LayerNorm(config.hidden, eps=config.eps)

    def computing(
        self, pixels: mx.array, positions: mx.array | None = None, seen: mx.array | None = None
    ) -> Work[mx.array]:
        """Compute [B, N, hidden] of images [B, H, W, channels] in slices. `seen` bool [B, 1, 1,
        N] is False for padding."""
        x = self.embeddings(pixels, positions)
        slices = Slices(*x.shape)
        for layer in self.encoder.layers:
            x = layer(x, seen)
            if slices.end_after_block([x]):
                yield
        output: mx.array = self.post_layernorm(x)
        return output


class SiglipTower(nn.Module):
    """Base of the towers that project the output of SigLIP."""

    def __init__(self, config: SiglipConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.vision_model = Siglip(config)

    @property
    def kernel(self) -> tuple[str, tuple[int, ...]]:
        return "vision_model.embeddings.patch_embedding.weight", self.vision_model.config.kernel

    @property
    def shape(self) -> EncoderShape:
        config, width = self.vision_model.config, self.vision_model.post_layernorm.weight.dtype.size
        return encoder_shape(config.layers, config.hidden, config.intermediate, config.heads, width)

    def grid_of(self, patches: int) -> Grid:
        """Return the grid that all images, crops and tiles have."""
        side = self.vision_model.config.side
        return 1, side, side

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        """Return [B, H, W, channels]."""
        config, (count, rows, columns) = self.vision_model.config, grid
        return count, rows * config.patch, columns * config.patch, config.channels

    def check_pixels(self, pixels: mx.array, grid: Grid) -> None:
        """Raise ValueError unless `pixels` fit this grid of images, rows and columns."""
        needed = self.pixel_shape(grid)
        if pixels.shape != needed:
            raise ValueError(f"pixels {pixels.shape} are not those of a grid of {grid}: {needed}")
