"""One model's vision: computes, keeps and evicts image features by digest. Mlx thread."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from math import isqrt, prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.vision.families import Tower, TowerFamily
from omlx_server.compute.vision.image_forward import FeatureSpan, ImageForward
from omlx_server.compute.vision.image_mask import with_image_mask
from omlx_server.compute.vision.positions import ImagePlace, axis_positions
from omlx_server.compute.vision.rope import AxisPositions, CacheWrapper, at_positions, shifted_by
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.core.images import ImageSpan
from omlx_server.core.memory.encoder import STRUCTURAL, EncoderPlan, Pass
from omlx_server.core.step import Chunk
from omlx_server.core.work import Work, finish


class Vision:
    """A model's tower and the image features that are kept. `plan` estimates the memory of a pass,
    an upper bound until measured. `runs` and `seconds` count computed images."""

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
        """Return the bytes of features that are not `wanted`."""
        return sum(
            features.nbytes for digest, features in self._kept.items() if digest not in wanted
        )

    def let_go(self, nbytes: int, wanted: Collection[bytes] = ()) -> int:
        """Evict features that are not `wanted`, least recently used first. Return the bytes
        freed."""
        freed = 0
        for digest in [digest for digest in self._kept if digest not in wanted]:
            if freed >= nbytes:
                break
            freed += self._kept.pop(digest).nbytes
        return freed

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

    def with_images(self, chunk: Chunk) -> ImageForward:
        """Return the model for one forward over a chunk. Missing features are computed now;
        raises ValueError."""
        spans = [self._feature_span(image, chunk) for image in chunk.images]
        return ImageForward(self._model, self._cache_wrapper(chunk), spans, self._scale)

    def _feature_span(self, image: ImageSpan, chunk: Chunk) -> FeatureSpan:
        """Return the features of the image's tokens in the chunk."""
        is_kept = self.has(image.digest)
        features = self._kept[image.digest] if is_kept else self._compute_now(image)
        start, stop = _in_chunk(image, chunk)
        offset = chunk.start - image.start
        return FeatureSpan(0, start, features.cut(start + offset, stop + offset))

    def _compute_now(self, image: ImageSpan) -> Features:
        if image.pixels is None:
            raise ValueError("the pixels of an image are not there any more")
        return finish(self.computing(image, image.pixels()))

    def _cache_wrapper(self, chunk: Chunk) -> CacheWrapper:
        if chunk.images and self._family.three_axes:
            places = [_place(image) for image in chunk.images]
            positions = axis_positions(chunk.start, chunk.stop, places) + chunk.shift
            return at_positions(AxisPositions([positions]))
        if chunk.images and self._family.image_mask:
            images = [_in_chunk(image, chunk) for image in chunk.images]
            return with_image_mask(len(chunk.tokens), images)
        return shifted_by([chunk.shift])


def pass_over(grid: Grid) -> Pass:
    patches = prod(grid)
    return Pass(1, patches, patches)


def _in_chunk(image: ImageSpan, chunk: Chunk) -> tuple[int, int]:
    """Return the first token of the image, counted in the chunk, and the one after its last."""
    return max(image.start, chunk.start) - chunk.start, min(image.stop, chunk.stop) - chunk.start


def _place(image: ImageSpan) -> ImagePlace:
    merge = isqrt(prod(image.grid) // image.count)
    return ImagePlace.of(image.start, image.grid, merge)
