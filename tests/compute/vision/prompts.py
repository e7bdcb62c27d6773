"""Tiny vision models as an engine has them, prompts with pictures in them, and what a model answers
to these in the naive way: whole, in caches of its own, one token after the other."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx
import numpy as np

from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel, loading
from omlx_server.compute.vision.image_forward import ImageForward
from omlx_server.compute.vision.positions import ImagePlace
from omlx_server.compute.vision.rope import shifted_by
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.compute.vision.vision import Vision
from omlx_server.core.images import ImageSpan, token_ids
from omlx_server.core.work import finish
from tests.arrays import plain
from tests.compute.vision.recorded import family, save
from tests.compute.vision.seeing import Loaded, Prompt
from tests.compute.vision.tiny import Floats, pixels

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma3", "idefics3")
SMALL, LARGE = (1, 4, 6), (1, 10, 6)


def load_with_vision(name: str, scheme: Scheme | None = None) -> LoadedModel:
    """A model of its own, with its vision."""
    with TemporaryDirectory() as folder:
        return finish(loading(save(name, Path(folder)), scheme=scheme, vision=True))


@cache
def seeing(name: str) -> LoadedModel:
    """The one that tests share: they may not keep features from it that others count."""
    return load_with_vision(name)


def vision_of(loaded: LoadedModel) -> Vision:
    assert loaded.vision is not None
    return loaded.vision


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Pixels as the tower takes them. `made` counts how often they were asked for."""

    grid: Grid
    pixels: Floats
    made: list[int] = field(default_factory=list)

    @property
    def digest(self) -> bytes:
        return blake2b(self.pixels.tobytes() + repr(self.grid).encode()).digest()

    def make(self) -> Floats:
        self.made.append(1)
        return self.pixels


def picture(name: str, seed: int, grid: Grid = SMALL) -> Picture:
    """A random one. Models with square images have one grid only."""
    tower = vision_of(seeing(name)).tower
    grid = grid if family(name).three_axes else tower.grid_of(1)
    return Picture(grid, pixels(seed, tower.pixel_shape(grid)))


def repainted(shown: Picture) -> Picture:
    """With one value that differs."""
    other = shown.pixels.copy()
    other.reshape(-1)[-1] += 0.5
    return Picture(shown.grid, other)


@dataclass(frozen=True, slots=True)
class Told:
    """A prompt of a model, with images in it, and the pictures that these are."""

    name: str
    tokens: tuple[int, ...] = ()
    images: tuple[ImageSpan, ...] = ()
    shown: tuple[Picture, ...] = ()

    def then(self, *parts: Sequence[int] | Picture) -> "Told":
        told = self
        for part in parts:
            told = told._seen(part) if isinstance(part, Picture) else told._said(part)
        return told

    def _said(self, tokens: Sequence[int]) -> "Told":
        return Told(self.name, (*self.tokens, *tokens), self.images, self.shown)

    def _seen(self, shown: Picture) -> "Told":
        own, start = family(self.name), len(self.tokens)
        count = vision_of(seeing(self.name)).tower.tokens(shown.grid)
        advance = count + (ImagePlace.of(start, shown.grid, 2).delta if own.three_axes else 0)
        span = ImageSpan(
            start,
            count,
            shown.digest,
            advance,
            whole=own.image_mask,
            grid=shown.grid,
            pixels=shown.make,
            nbytes=shown.pixels.nbytes,
        )
        ids = token_ids(span.digest, count)
        return Told(self.name, (*self.tokens, *ids), (*self.images, span), (*self.shown, shown))


def words(seed: object, count: int) -> list[int]:
    rng = random.Random(str(seed))
    return [rng.randrange(1, 100) for _ in range(count)]


def answer(
    loaded: LoadedModel,
    told: Told,
    count: int,
    *,
    repetition: float = 1.0,
    only: Sequence[int] = (),
) -> list[int]:
    """The greedy answer to a prompt, in the naive way; with `only`, of these tokens."""
    model = Loaded(told.name, loaded.target, vision_of(loaded).tower)
    prompt = _prompt(model, told)
    caches, said = model.caches(), [*told.tokens]
    logits = model.feed(prompt, 0, len(prompt.ids), caches)[-1]
    found = list[int]()
    for _ in range(count):
        tokens = only or range(logits.shape[-1])
        values = _penalised(logits, said, repetition)[mx.array(list(tokens))]
        found.append(tokens[plain(mx.argmax(values))])
        said.append(found[-1])
        step = ImageForward(loaded.target, shifted_by([prompt.delta]))
        logits = step(mx.array([[found[-1]]]), caches)[0, -1]
    return found


def _prompt(model: Loaded, told: Told) -> Prompt:
    features = [
        finish(model.tower.computing(mx.array(shown.pixels), shown.grid)) for shown in told.shown
    ]
    starts = [image.start for image in told.images]
    three_axes = family(told.name).three_axes
    places = [
        ImagePlace.of(start, shown.grid, 2)
        for start, shown in zip(starts, told.shown, strict=True)
        if three_axes
    ]
    return Prompt(list(told.tokens), starts, features, places)


def _penalised(logits: mx.array, said: Sequence[int], repetition: float) -> mx.array:
    values = np.array(logits.astype(mx.float32))
    known = sorted({token for token in said if token < len(values)})
    own = values[known]
    values[known] = np.where(own > 0, own / repetition, own * repetition)
    return mx.array(values)
