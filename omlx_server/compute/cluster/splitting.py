"""Leaves a rank its part of a model: some heads of each layer, or some layers."""

import math
from typing import Any

import mlx.nn as nn

from omlx_server.compute.caches import new_caches
from omlx_server.compute.cluster.ranks import ConnectedRanks
from omlx_server.compute.codecs.registry import leaves
from omlx_server.errors import ModelUnavailable

_HEAD_COUNTS = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "heads of keys and values",
}


def split_model(model: nn.Module, ranks: ConnectedRanks) -> None:
    """Reduce a lazy model to this rank's part. Raises ModelUnavailable."""
    inner: Any = getattr(model, "model", None)
    try:
        if hasattr(model, "shard"):
            _check_heads(model, ranks.size)
            model.shard(ranks.group)
        elif hasattr(inner, "pipeline"):
            all_classes = _cache_classes(model)
            inner.pipeline(ranks.group)
            ranks.by_layers = True
            # Else ranks would group prompts in different ways.
            if _cache_classes(model) != all_classes:
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


def _check_heads(model: nn.Module, size: int) -> None:
    args: Any = getattr(model, "args", None)
    args = getattr(args, "text_config", None) or args
    values = {
        what: args.get(name) if isinstance(args, dict) else getattr(args, name, None)
        for name, what in _HEAD_COUNTS.items()
    }
    counts = {what: count for what, count in values.items() if isinstance(count, int)}
    for what, count in counts.items():
        if count % size:
            most = math.gcd(*counts.values())
            fits = [str(each) for each in range(2, most + 1) if not most % each]
            instead = f"but to {' or '.join(fits)}" if fits else "nor to any other number"
            raise ModelUnavailable(
                f"its {count} {what} can't be shared out to {size} ranks, {instead}"
            )


def _cache_classes(model: nn.Module) -> set[type]:
    return {type(leaf) for leaf in leaves(new_caches(model))}
