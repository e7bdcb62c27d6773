"""Measures the mean of each layer's keys, which is subtracted before they are quantised.

All keys of a head share a large part, which softmax does not see and which takes up most of the
quantiser's levels (SageAttention, arXiv 2410.02367). The mean is over random tokens, in short
pieces at many positions because of RoPE.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import create_attention_mask

from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Cache
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.schemes.base import Arrays, Mask, Scheme
from omlx_server.compute.kv.schemes.plain import Plain

_POSITIONS = (0, 64, 200, 500, 1000, 2000, 4000, 8000)  # of each piece's first token
_TOKENS = 32
# The weight of a piece's first token, which draws much attention and whose key is far from others.
_SHARE_OF_FIRST = 1 / 8

Replaced = Callable[[Mapping[int, Callable[[], Cache]]], Caches]


def key_centres(
    model: nn.Module, replaced: Replaced, members: Sequence[int], vocabulary: int
) -> list[mx.array]:
    """Return the mean key f32 [H, 1, D] of each member (a leaf number of the caches). Waits."""
    listeners = {member: _Listener() for member in members}
    for number, position in enumerate(_POSITIONS):
        makers = {m: partial(_Piece, listener, position) for m, listener in listeners.items()}
        model(mx.array([_tokens(number, vocabulary)]), cache=replaced(makers))
        mx.eval([listener.means for listener in listeners.values()])
    return [listener.centre() for listener in listeners.values()]


class _Listener(Plain):
    def __init__(self) -> None:
        self.means: list[mx.array] = []

    def quantize_keys(self, x: mx.array) -> Arrays:
        keys = x[0].astype(mx.float32)
        others = keys[:, 1:].mean(axis=1, keepdims=True)
        self.means.append(others + (keys[:, :1] - others) * _SHARE_OF_FIRST)
        return super().quantize_keys(x)

    def centre(self) -> mx.array:
        """Waits. 0 where the mean is not finite."""
        mean = sum(self.means[1:], start=self.means[0]) * (1 / len(self.means))
        centre = mx.where(mx.isfinite(mean), mean, 0.0)
        mx.eval(centre)
        return centre


class _Piece(PackedKVCache):
    """A cache for one piece, whose positions begin at `first`."""

    def __init__(self, scheme: Scheme, first: int) -> None:
        super().__init__(scheme)
        self._first = first

    @property
    def first(self) -> int:
        return self._first

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        mask: Mask = create_attention_mask(
            N, offset=0, return_array=return_array, window_size=window_size
        )
        return mask


def _tokens(number: int, vocabulary: int) -> list[int]:
    """Vocabularies begin with control tokens and bytes, which are left out."""
    first = vocabulary // 100
    stop = max(vocabulary // 16, first + 1)
    stream = hashlib.shake_256(f"piece {number}".encode()).digest(4 * _TOKENS)
    words = (stream[i : i + 4] for i in range(0, len(stream), 4))
    return [first + int.from_bytes(word, "little") % (stop - first) for word in words]
