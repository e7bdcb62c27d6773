"""Caches that are as large as those of a long prompt and hold zeros, for probes. Mlx thread."""

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.registry import codec_of, leaves
from omlx_server.core.memory.kv import Keeps, LayerKv


def one_token(model: nn.Module) -> Caches:
    """Caches of one token, computed."""
    caches = cache_ops.new_caches(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)
    cache_ops.evaluate(caches, wait=True)
    return caches


def filled(model: nn.Module, tokens: int, chunk: int, like: Caches) -> Caches:
    """Caches of one sequence of so many tokens, prefilled in such chunks. Evaluated. `like` are
    `one_token` of the same model, and are not kept.

    Raises:
        CannotFill: one is of a class that can't be made long without a prefill.
    """
    caches = cache_ops.new_caches(model)
    if tokens:
        for leaf, short in zip(leaves(caches), leaves(like), strict=True):
            if short.nbytes:  # a layer without attention has a cache that it never uses
                codec_of(leaf).fill(leaf, short, tokens, chunk)
        cache_ops.evaluate(caches, wait=True)
    return caches


def layers_of(model: nn.Module) -> tuple[LayerKv, ...]:
    """As `layers_held`, by a forward of one token."""
    return layers_held(one_token(model))


def layers_held(short: Caches) -> tuple[LayerKv, ...]:
    """What each of a model's caches holds of a sequence, told by its caches of one token.

    Raises:
        CannotFill: one is of a class that is not known.
    """
    counts: dict[LayerKv, int] = {}
    for leaf in leaves(short):
        layer = codec_of(leaf).layer_kv(leaf) if leaf.nbytes else LayerKv(Keeps.CONSTANT, 0)
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(LayerKv(k.keeps, k.nbytes, n, k.window) for k, n in counts.items())
