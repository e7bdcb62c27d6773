"""Caches of zeros for probes, and what caches hold. Mlx thread."""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.registry import codec_of, leaves
from omlx_server.core.memory.kv import Keeps, LayerKv


def one_token(model: nn.Module) -> Caches:
    """Return solo caches of one token. Runs the model and waits."""
    caches = cache_ops.new_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    cache_ops.evaluate(caches, wait=True)
    return caches


def filled(model: nn.Module, tokens: int, chunk: int, like: Caches) -> Caches:
    """Return evaluated solo caches of zeros, as after a prefill in chunks. `like` are caches by
    `one_token`. Raises CannotFill."""
    caches = cache_ops.new_caches(model)
    if tokens:
        for leaf, short in zip(leaves(caches), leaves(like), strict=True):
            if short.nbytes:  # a layer without attention has a cache that stays empty
                codec_of(leaf).fill(leaf, short, tokens, chunk)
        cache_ops.evaluate(caches, wait=True)
    return caches


def layers_of(model: nn.Module) -> tuple[LayerKv, ...]:
    return layers_held(one_token(model))


def layers_held(short: Caches) -> tuple[LayerKv, ...]:
    """Return what each cache holds, equal layers counted together. Raises CannotFill."""
    counts: dict[LayerKv, int] = {}
    for leaf in leaves(short):
        layer = codec_of(leaf).layer_kv(leaf) if leaf.nbytes else LayerKv(Keeps.CONSTANT, 0)
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(layer, count=count) for layer, count in counts.items())
