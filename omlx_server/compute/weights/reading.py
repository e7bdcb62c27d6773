"""Reads the weights of a module into memory. Mlx thread."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omlx_server.core.crash import Crash, guarded
from omlx_server.core.work import Work
from omlx_server.errors import ModelUnavailable

T = TypeVar("T")

_SLICE_BYTES = 128 << 20


def reading(model: nn.Module, path: Path) -> Work[None]:
    """Read lazy weights, in slices. Waits for each. Raises ModelUnavailable."""
    arrays = iter(dict(tree_flatten(model.parameters())).values())
    while to_read := _next_slice(arrays):
        guarded_load(path, partial(mx.eval, to_read))
        yield


def _next_slice(arrays: Iterator[mx.array]) -> list[mx.array]:
    taken, nbytes = list[mx.array](), 0
    for array in arrays:
        taken.append(array)
        nbytes += array.nbytes
        if nbytes >= _SLICE_BYTES:
            break
    return taken


def guarded_load(path: Path, work: Callable[[], T]) -> T:
    """Return the result of `work`; any error of it becomes ModelUnavailable."""
    result = guarded(work)
    if not isinstance(result, Crash):
        return result
    raise ModelUnavailable(
        f"can't load the model in {path}: {result.reason}",
        hint="the directory must hold an MLX-layout model that mlx-lm supports",
    ) from result.error
