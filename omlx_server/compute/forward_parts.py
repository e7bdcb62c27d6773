"""Submits a forward in parts: some layers at a time, or a part of the keys
(core/dispatch_limit.py). Mlx thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import cycle
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omlx_server.compute.architectures.pair import members
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.dispatch import Dispatch
from omlx_server.core.dispatch_limit import DispatchLimit, DispatchParts
from omlx_server.core.step import Chunk

# The weight of the newest step in the correction of predictions, and its bounds.
_NEWEST = 0.25
_LEAST_CORRECTION, _MOST_CORRECTION = 0.5, 8.0


class ForwardParts:
    """The parts of a model's forwards. Without `limit` they are whole."""

    def __init__(self, model: nn.Module) -> None:
        self._layer_classes = {type(layer) for layer in decoder_layers(model)}
        self.limit: DispatchLimit | None = None
        self._correction = 1.0

    def of_chunks(self, chunks: Sequence[Chunk]) -> AbstractContextManager[None]:
        """Submit the forward within in parts."""
        return self.of_rows([(len(chunk.tokens), chunk.start) for chunk in chunks])

    def of_rows(self, rows: Sequence[tuple[int, int]]) -> AbstractContextManager[None]:
        """Submit the forward within in parts. `rows`: tokens, and cached tokens before them."""
        if self.limit is None or not rows:
            return nullcontext()
        parts = self.limit.parts(rows, self._correction)
        is_whole = parts.layers >= self.limit.pace.layers
        return nullcontext() if is_whole else self._submitting(parts)

    def note_chunks(self, groups: Sequence[Sequence[Chunk]], seconds: float) -> None:
        """Correct the predictions by the `seconds` that groups of chunks took."""
        if self.limit is None:
            return
        pace = self.limit.pace
        chunks = [chunk for group in groups for chunk in group if chunk.tokens]
        predicted = sum(pace.chunk_seconds(len(chunk.tokens), chunk.start) for chunk in chunks)
        if predicted and seconds:
            correction = self._correction + _NEWEST * (seconds / predicted - self._correction)
            self._correction = min(max(correction, _LEAST_CORRECTION), _MOST_CORRECTION)

    @contextmanager
    def _submitting(self, parts: DispatchParts) -> Iterator[None]:
        """Launch the output of every so many layers. The `__call__` of their classes is replaced,
        because Python looks it up there."""
        calls = {layer: layer.__call__ for layer in self._layer_classes}
        inherited = [layer for layer in calls if "__call__" not in vars(layer)]
        is_last = cycle([*[False] * (parts.layers - 1), True])
        try:
            for layer, call in calls.items():
                layer.__call__ = _launching(call, is_last)  # type: ignore[method-assign]
            Dispatch.keys_at_once = parts.keys
            yield
        finally:
            Dispatch.keys_at_once = None
            for layer, call in calls.items():
                layer.__call__ = call  # type: ignore[method-assign]
            for layer in inherited:
                del layer.__call__


def _launching(call: Callable[..., Any], is_last: Iterator[bool]) -> Callable[..., Any]:
    def launch_last(*args: Any, **options: Any) -> Any:
        output = call(*args, **options)
        if next(is_last):
            leaves = dict(tree_flatten([output])).values()
            device.launch(*(leaf for leaf in leaves if isinstance(leaf, mx.array)))
        return output

    return launch_last


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model, and of its drafter."""
    layers: list[Any] = [layer for part in members(model) for layer in getattr(part, "layers", ())]
    return [layer for layer in layers if isinstance(layer, nn.Module)]
