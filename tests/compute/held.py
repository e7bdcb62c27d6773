"""What live rows hold, beside what was planned."""

import gc
from functools import cache

import mlx.core as mx

from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.model_shape import shape_of
from omlx_server.core.memory.estimate import STRUCTURAL, Planner
from tests.compute.planning.loaded import AFFINE, TURBOQUANT, load

MODELS: dict[str, tuple[str, Scheme | None]] = {
    "llama": ("llama", None),
    "gemma3_text": ("gemma3_text", None),
    "qwen3_next": ("qwen3_next", None),
    "affine": ("qwen3", AFFINE),
    "turboquant": ("qwen3", TURBOQUANT),
}


@cache
def planned(name: str) -> tuple[LoadedModel, Planner]:
    loaded = load(*MODELS[name])
    return loaded, Planner(shape_of(loaded), STRUCTURAL)


def active() -> int:
    """The bytes that MLX holds, by its own count."""
    device.wait()
    gc.collect()
    return mx.get_active_memory()


def held(caches: Caches) -> int:
    return sum(leaf.nbytes for leaf in leaves(caches))
