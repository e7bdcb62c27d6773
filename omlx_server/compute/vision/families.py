"""The known families of vision models, by `model_type` in config.json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import mlx.core as mx

from omlx_server.compute.vision.rope import Sections
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.gemma3 import Gemma3Tower, Gemma3VisionConfig
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.compute.vision.towers.idefics3 import Idefics3Tower, Idefics3VisionConfig
from omlx_server.compute.vision.towers.qwen import qwen2, qwen2_5, qwen3
from omlx_server.core.memory.encoder import EncoderShape
from omlx_server.core.work import Work


class Tower(Protocol):
    @property
    def kernel(self) -> tuple[str, tuple[int, ...]]:
        """The name of the weights that embed patches, and a patch's axes."""

    @property
    def shape(self) -> EncoderShape: ...
    def grid_of(self, patches: int) -> Grid:
        """Return the grid of a square image or tile of about so many patches."""

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]: ...
    def tokens(self, grid: Grid) -> int: ...
    def computing(self, pixels: mx.array, grid: Grid) -> Work[Features]:
        """Compute one image's features in slices. Raises ValueError if pixels and grid differ."""


@dataclass(frozen=True, slots=True)
class TowerFamily:
    """How a family makes its tower from config.json, and how its language model takes images.

    `prefixes` maps those of stored weights to ours; the first match counts. `three_axes`: positions
    are on three axes, whose frequencies may be `interleaved`. `image_mask`: the tokens of an image
    see each other. `scales_input`: the model multiplies its input."""

    make: Callable[[Mapping[str, Any]], Any]
    prefixes: tuple[tuple[str, str], ...]
    three_axes: bool = False
    interleaved: bool = False
    image_mask: bool = False
    scales_input: bool = False

    def sections(self, config: Mapping[str, Any]) -> Sections | None:
        """Return which frequencies turn by which axis, if any. Raises ModelUnavailable."""
        return Sections.read(config, interleaved=self.interleaved) if self.three_axes else None

    def input_scale(self, config: Mapping[str, Any]) -> float:
        """Return the model's factor for its input: the root of its width in bfloat16."""
        if not self.scales_input:
            return 1.0
        scale = config["text_config"]["hidden_size"] ** 0.5
        return float(mx.array(scale, mx.bfloat16).item())  # type: ignore[arg-type]


_QWEN_PREFIXES = (("model.visual.", ""), ("visual.", ""), ("vision_tower.", ""))
_GEMMA_PREFIXES = (
    ("vision_tower.vision_model.", "vision_model."),
    ("model.vision_tower.vision_model.", "vision_model."),
    ("vision_tower.", "vision_model."),
    ("model.vision_tower.", "vision_model."),
    ("multi_modal_projector.", "projector."),
    ("model.multi_modal_projector.", "projector."),
)
_IDEFICS_PREFIXES = (
    ("model.vision_model.", "vision_model."),
    ("vision_model.", "vision_model."),
    ("model.connector.", "connector."),
    ("connector.", "connector."),
)
_QWEN3 = TowerFamily(qwen3, _QWEN_PREFIXES, three_axes=True, interleaved=True)
_QWEN3_5 = replace(_QWEN3, make=partial(qwen3, deepstack=False))
_IDEFICS3 = TowerFamily(
    lambda config: Idefics3Tower(Idefics3VisionConfig.read(config)), _IDEFICS_PREFIXES
)

FAMILIES: Mapping[str, TowerFamily] = {
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen2_5_vl": TowerFamily(qwen2_5, _QWEN_PREFIXES, three_axes=True),
    "qwen2_vl": TowerFamily(qwen2, _QWEN_PREFIXES, three_axes=True),
    "gemma3": TowerFamily(
        lambda config: Gemma3Tower(Gemma3VisionConfig.read(config)),
        _GEMMA_PREFIXES,
        image_mask=True,
        scales_input=True,
    ),
    "idefics3": _IDEFICS3,
    "smolvlm": _IDEFICS3,
}


def family_of(config: Mapping[str, Any]) -> TowerFamily | None:
    if "vision_config" not in config:
        return None
    return FAMILIES.get(str(config.get("model_type")))
