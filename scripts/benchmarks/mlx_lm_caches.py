"""A model with the caches that its class or mlx-lm makes, instead of those of our loader."""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.nn as nn


@contextmanager
def mlx_lm_caches(model: nn.Module) -> Iterator[None]:
    """Within the block, `model` makes no caches of ours. Those that are there stay."""
    ours = vars(model).pop("make_cache", None)
    try:
        yield
    finally:
        if ours is not None:
            model.make_cache = ours
