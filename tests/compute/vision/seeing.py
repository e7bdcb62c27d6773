"""Tiny vision models as a server has them: the tower, and the language model with our caches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.model.loader import load
from omlx_server.compute.vision.image_forward import FeatureSpan, ImageForward
from omlx_server.compute.vision.image_mask import with_image_mask
from omlx_server.compute.vision.positions import ImagePlace, axis_positions
from omlx_server.compute.vision.rope import (
    AxisPositions,
    CacheWrapper,
    at_positions,
    shifted_by,
    use_axes,
)
from omlx_server.compute.vision.towers.features import Features
from tests.compute.vision.recorded import (
    arrays,
    family,
    features,
    images,
    load_tower,
    save,
    tensors,
)
from tests.compute.vision.tiny import CONFIGS, START_ID

PADDED = ("qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen2_vl")
THREE_AXES = (*PADDED, "qwen3_5")
MODELS = (*THREE_AXES, "gemma3", "idefics3", "smolvlm")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with the features of its images, and of each the number of its first token and its
    place on three axes."""

    ids: list[int]
    starts: list[int]
    features: list[Features]
    places: list[ImagePlace]

    @property
    def delta(self) -> int:
        return sum(place.delta for place in self.places)


@dataclass(frozen=True, slots=True)
class Loaded:
    name: str
    model: nn.Module
    tower: Any

    def caches(self) -> Caches:
        return cache_ops.new_caches(self.model)

    @property
    def scale(self) -> float:
        return family(self.name).input_scale(CONFIGS[self.name])

    def prompt(self, number: int) -> Prompt:
        """Recorded prompt `number`."""
        ids = arrays(self.name)[f"ids_{number}"].tolist()
        shown = images(self.name, number)
        starts = [place + 1 for place, id in enumerate(ids) if id == START_ID]
        places = [
            ImagePlace.of(start, image.grid, 2)
            for start, image in zip(starts, shown, strict=True)
            if family(self.name).three_axes
        ]
        return Prompt(ids, starts, [features(self.tower, image) for image in shown], places)

    def feed(self, prompt: Prompt, start: int, stop: int, caches: Caches) -> mx.array:
        """Logits [T, V] of a chunk of the prompt behind what the caches have."""
        entries = part_of(prompt, 0, start, stop)
        seeing = ImageForward(self.model, self.view(prompt, start, stop), entries, self.scale)
        return seeing(mx.array([prompt.ids[start:stop]]), caches)[0]

    def view(self, prompt: Prompt, start: int, stop: int) -> CacheWrapper:
        entries = part_of(prompt, 0, start, stop)
        if family(self.name).three_axes:
            return at_positions(AxisPositions([axis_positions(start, stop, prompt.places)]))
        if family(self.name).image_mask and entries:
            return with_image_mask(stop - start, [(entry.start, entry.stop) for entry in entries])
        return shifted_by([0])


def part_of(prompt: Prompt, row: int, start: int, stop: int) -> list[FeatureSpan]:
    """What of the images is among tokens `start` to before `stop`, for row `row` of a forward."""
    found = list[FeatureSpan]()
    for first, whole in zip(prompt.starts, prompt.features, strict=True):
        low, high = max(start, first), min(stop, first + whole.tokens)
        if low < high:
            found.append(FeatureSpan(row, low - start, whole.cut(low - first, high - first)))
    return found


def fresh(name: str, dtype: mx.Dtype = mx.float32) -> Loaded:
    """A model of its own for a test that changes it."""
    with TemporaryDirectory() as folder:
        weights = {key: array.astype(dtype) for key, array in tensors(name).items()}
        path = save(name, Path(folder), weights)
        model, tower = load(path).model, load_tower(name, path)
        mx.eval(model.parameters(), tower.parameters())
    sections = family(name).sections(CONFIGS[name])
    if sections is not None:
        use_axes(model, sections)
    return Loaded(name, model, tower)


@cache
def loaded(name: str, dtype: mx.Dtype = mx.float32) -> Loaded:
    return fresh(name, dtype)


def in_chunks(model: Loaded, prompt: Prompt, borders: Sequence[int]) -> tuple[mx.array, Caches]:
    """Logits [T, V] of a prompt that is prefilled in chunks, which end at the borders, and its
    caches."""
    caches, found = model.caches(), list[mx.array]()
    for start, stop in zip((0, *borders), (*borders, len(prompt.ids)), strict=True):
        found.append(model.feed(prompt, start, stop, caches))
        mx.eval(found[-1])
    return mx.concatenate(found), caches
