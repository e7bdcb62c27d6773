"""Measures the mean of each layer's keys, which is subtracted before they are quantised. All keys
of a head share a large part, which softmax does not see and which takes up most of the quantiser's
levels (SageAttention, arXiv 2410.02367). The mean is over random tokens, in short pieces at many
positions because of RoPE."""

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

_PIECE_POSITIONS = (0, 64, 200, 500, 1000, 2000, 4000, 8000)  # of the first tokens
_PIECE_TOKENS = 32
# The weight of a piece's first token, which draws much attention and whose key is far from others.
_WEIGHT_OF_FIRST_TOKEN = 1 / 8

# Makes caches, those with the given leaf numbers by the given makers.
ReplaceCaches = Callable[[Mapping[int, Callable[[], Cache]]], Caches]


def key_centres(
    model: nn.Module, replace: ReplaceCaches, members: Sequence[int], vocabulary: int
) -> list[mx.array]:
    """Return the mean key f32 [H, 1, D] of each member (a leaf number of the caches). Waits."""
    means_of = {member: _KeyMeans() for member in members}
    for number, position in enumerate(_PIECE_POSITIONS):
        makers = {member: partial(_PieceCache, own, position) for member, own in means_of.items()}
        model(mx.array([_random_tokens(number, vocabulary)]), cache=replace(makers))
        mx.eval([own.means for own in means_of.values()])
    return [own.centre() for own in means_of.values()]


class _KeyMeans(Plain):
    """A plain scheme that notes the mean key of each piece."""

    def __init__(self) -> None:
        self.means: list[mx.array] = []

    def quantize_keys(self, x: mx.array) -> Arrays:
        keys = x[0].astype(mx.float32)
        others = keys[:, 1:].mean(axis=1, keepdims=True)
        self.means.append(others + (keys[:, :1] - others) * _WEIGHT_OF_FIRST_TOKEN)
        return super().quantize_keys(x)

    def centre(self) -> mx.array:
        """Return the mean, 0 where it is not finite. Waits."""
        mean = sum(self.means[1:], start=self.means[0]) * (1 / len(self.means))
        centre = mx.where(mx.isfinite(mean), mean, 0.0)
        mx.eval(centre)
        return centre


class _PieceCache(PackedKVCache):
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


def _random_tokens(number: int, vocabulary: int) -> list[int]:
    # Vocabularies begin with control tokens and bytes, which are left out.
    first = vocabulary // 100
    stop = max(vocabulary // 16, first + 1)
    stream = hashlib.shake_256(f"piece {number}".encode()).digest(4 * _PIECE_TOKENS)
    words = (stream[i : i + 4] for i in range(0, len(stream), 4))
    return [first + int.from_bytes(word, "little") % (stop - first) for word in words]
