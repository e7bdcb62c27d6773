"""One model's vision: computes, keeps and evicts image features by digest. Mlx thread."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from math import isqrt, prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.vision.entering import FeatureSpan, WithImages
from omlx_server.compute.vision.families import Tower, TowerFamily
from omlx_server.compute.vision.positions import ImagePlace, axis_positions
from omlx_server.compute.vision.rope import AxisPositions
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.compute.vision.views import View, at_positions, in_blocks, moved
from omlx_server.core.images import ImageSpan
from omlx_server.core.memory.encoder import STRUCTURAL, EncoderPlan, Pass
from omlx_server.core.step import Chunk
from omlx_server.core.work import Work, finish


class Vision:
    """`plan` estimates the memory of a pass, an upper bound until measured."""

    def __init__(
        self,
        model: nn.Module,
        tower: Tower,
        family: TowerFamily,
        config: Mapping[str, Any],
        weight_bytes: int = 0,
    ) -> None:
        """A model with three axes needs `rope.use_axes`."""
        self.tower = tower
        self.weight_bytes = weight_bytes
        self.plan = EncoderPlan(tower.shape, STRUCTURAL)
        self.runs = 0
        self.seconds = 0.0
        self._model = model
        self._family = family
        self._scale = family.input_scale(config)
        self._kept: dict[bytes, Features] = {}  # the least recently used first
        self._computing: set[bytes] = set()

    # -- features ------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        return sum(features.nbytes for features in self._kept.values())

    def has(self, digest: bytes) -> bool:
        """Return whether the features of an image are kept, and mark them as used."""
        features = self._kept.pop(digest, None)
        if features is not None:
            self._kept[digest] = features
        return features is not None

    def needs(self, image: ImageSpan) -> int:
        """Return the most bytes for an image, pixels and features included."""
        return self.plan.needs(pass_over(image.grid)) + image.nbytes

    def is_computing(self, digest: bytes) -> bool:
        return digest in self._computing

    @contextmanager
    def computing_alone(self, digest: bytes) -> Iterator[None]:
        self._computing.add(digest)
        try:
            yield
        finally:
            self._computing.discard(digest)

    def computing(self, image: ImageSpan, pixels: Any) -> Work[Features]:
        """Compute and keep the features of an image. `pixels` are float32. Raises ValueError."""
        features = yield from self._timed(self.tower.computing(mx.array(pixels), image.grid))
        if features.tokens != image.count:
            raise ValueError(f"an image of {image.count} tokens has {features.tokens} features")
        self.runs += 1
        self._kept[image.digest] = features
        return features

    def spare(self, wanted: Collection[bytes]) -> int:
        return sum(
            features.nbytes for digest, features in self._kept.items() if digest not in wanted
        )

    def let_go(self, nbytes: int, wanted: Collection[bytes] = ()) -> int:
        """Evict features that are not `wanted`, least recently used first. Return the bytes
        freed."""
        gone = 0
        for digest in [digest for digest in self._kept if digest not in wanted]:
            if gone >= nbytes:
                break
            gone += self._kept.pop(digest).nbytes
        return gone

    def _timed(self, work: Work[Features]) -> Work[Features]:
        while True:
            begun = time.perf_counter()
            try:
                next(work)
            except StopIteration as end:
                features: Features = end.value
                return features
            finally:
                self.seconds += time.perf_counter() - begun
            yield

    # -- a forward -----------------------------------------------------------------------

    def with_images(self, chunk: Chunk) -> WithImages:
        """Return the model for one forward over a chunk. Missing features are computed now;
        raises ValueError."""
        entries = [self._entry(image, chunk) for image in chunk.images]
        return WithImages(self._model, self._view(chunk), entries, self._scale)

    def _entry(self, image: ImageSpan, chunk: Chunk) -> FeatureSpan:
        features = self._kept[image.digest] if self.has(image.digest) else self._now(image)
        start, stop = max(image.start, chunk.start), min(image.stop, chunk.stop)
        part = features.cut(start - image.start, stop - image.start)
        return FeatureSpan(0, start - chunk.start, part)

    def _now(self, image: ImageSpan) -> Features:
        if image.pixels is None:
            raise ValueError("the pixels of an image are not there any more")
        return finish(self.computing(image, image.pixels()))

    def _view(self, chunk: Chunk) -> View:
        if chunk.images and self._family.three_axes:
            places = [_place(image) for image in chunk.images]
            positions = axis_positions(chunk.start, chunk.stop, places) + chunk.shift
            return at_positions(AxisPositions([positions]))
        if chunk.images and self._family.in_blocks:
            blocks = [
                (max(image.start - chunk.start, 0), min(image.stop, chunk.stop) - chunk.start)
                for image in chunk.images
            ]
            return in_blocks(len(chunk.tokens), blocks)
        return moved([chunk.shift])


def pass_over(grid: Grid) -> Pass:
    patches = prod(grid)
    return Pass(1, patches, patches)


def _place(image: ImageSpan) -> ImagePlace:
    return ImagePlace.of(image.start, image.grid, isqrt(prod(image.grid) // image.count))
