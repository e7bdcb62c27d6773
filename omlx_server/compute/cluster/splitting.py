"""Leaves a rank its part of a model: some heads of each layer, or some layers. Mlx thread.

mlx-lm's own classes know how they are split: `shard` for tensor parallelism, `pipeline` where that
is all that a model has.
"""

import mlx.nn as nn

from omlx_server.compute.caches import new_caches
from omlx_server.compute.cluster.ranks import Ranks
from omlx_server.compute.codecs.registry import leaves
from omlx_server.errors import ModelUnavailable


def split(model: nn.Module, ranks: Ranks) -> None:
    """Leave the part of this rank of a model whose weights are not read yet.

    Raises:
        ModelUnavailable: it can't be split over so many ranks.
    """
    inner = getattr(model, "model", None)
    try:
        if hasattr(model, "shard"):
            model.shard(ranks.group)
        elif hasattr(inner, "pipeline"):
            kinds = _kinds(model)
            inner.pipeline(ranks.group)
            ranks.by_layers = True
            if _kinds(model) != kinds:  # else ranks would group prompts in different ways
                raise ModelUnavailable(
                    f"of {ranks.size} ranks, one would have no layer of each kind",
                    hint="use fewer machines",
                )
        else:
            raise ModelUnavailable(
                f"{type(model).__module__.rpartition('.')[2]} models can't be split over machines",
                hint="docs/cluster.md lists the families that can",
            )
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ModelUnavailable(f"it can't be split over {ranks.size} ranks: {error}") from error


def _kinds(model: nn.Module) -> set[type]:
    """The classes of the caches of its layers."""
    return {type(leaf) for leaf in leaves(new_caches(model))}
