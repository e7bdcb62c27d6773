"""Caches that are as large as those of a long prompt and hold zeros, for probes. Mlx thread."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Cache, Caches
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.core.memory.kv import Keeps, LayerKv, places


class CannotFill(Exception):
    """A cache is of a class that can't be made long without reading a long prompt."""


def one_token(model: nn.Module) -> Caches:
    """Caches of one token, computed."""
    caches = cache_ops.new_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    cache_ops.evaluate(caches, wait=True)
    return caches


def filled(model: nn.Module, tokens: int, chunk: int, like: Caches) -> Caches:
    """Caches of one sequence of so many tokens, read in such chunks. Evaluated. `like` are
    `one_token` of the same model, and are not kept.

    Raises:
        CannotFill: see there.
    """
    caches = cache_ops.new_caches(model)
    if tokens:
        for leaf, short in zip(leaves(caches), leaves(like), strict=True):
            _fill(leaf, short, tokens, chunk)
        cache_ops.evaluate(caches, wait=True)
    return caches


def layers_of(model: nn.Module) -> tuple[LayerKv, ...]:
    """What each of a model's caches holds of a sequence.

    Raises:
        CannotFill: one is of a class that is not known.
    """
    counts: dict[LayerKv, int] = {}
    for leaf in leaves(one_token(model)):
        layer = _layer_of(leaf)
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(LayerKv(k.keeps, k.nbytes, n, k.window) for k, n in counts.items())


def _layer_of(leaf: Cache) -> LayerKv:
    if isinstance(leaf, ArraysCache) or leaf.empty():
        return LayerKv(Keeps.CONSTANT, leaf.nbytes)
    if isinstance(leaf, PackedKVCache):
        return LayerKv(Keeps.GROWING, _a_token((*leaf.keys, *leaf.values)))
    if isinstance(leaf, KVCache):
        return LayerKv(Keeps.GROWING, _a_token((leaf.keys, leaf.values)))
    if isinstance(leaf, RotatingKVCache):
        return LayerKv(Keeps.RING, _a_token((leaf.keys, leaf.values)), window=leaf.max_size)
    raise CannotFill(f"its {type(leaf).__name__} has an unknown size")


def _a_token(arrays: tuple[mx.array, ...]) -> int:
    return sum(array.nbytes // array.shape[2] for array in arrays)


def _fill(leaf: Cache, short: Cache, tokens: int, chunk: int) -> None:
    if isinstance(leaf, ArraysCache):
        leaf.cache = [None if state is None else mx.zeros_like(state) for state in short.cache]
        return
    if short.empty():  # a layer without attention has a cache that it never uses
        return
    if isinstance(leaf, PackedKVCache):
        leaf.keys = tuple(_zeros(array, places(tokens)) for array in short.keys)
        leaf.values = tuple(_zeros(array, places(tokens)) for array in short.values)
    elif isinstance(leaf, KVCache):
        _replace(leaf, short, places(tokens))
    elif isinstance(leaf, RotatingKVCache):
        _replace(leaf, short, min(tokens, leaf.max_size + chunk - 1))
        leaf._idx = leaf.keys.shape[2]
    else:
        raise CannotFill(f"its {type(leaf).__name__} can't be filled")
    leaf.offset = tokens


def _replace(leaf: Any, short: Any, size: int) -> None:
    leaf.keys, leaf.values = _zeros(short.keys, size), _zeros(short.values, size)


def _zeros(like: mx.array, tokens: int) -> mx.array:
    return mx.zeros((*like.shape[:2], tokens, like.shape[3]), like.dtype)
