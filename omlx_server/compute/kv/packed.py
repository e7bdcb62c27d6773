"""What our caches hand to a model in the place of arrays."""

from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.kv.schemes.base import Arrays, Scheme
from omlx_server.compute.kv.spans import Spans


@dataclass(frozen=True, slots=True, eq=False)
class PackedKV:
    """Keys or values as our cache hands them to a model: the stored `arrays` of the sequence's own
    tokens, behind those of `spans`. The model passes them on to its attention, where our hook finds
    them (compute/kv/dispatch.py); they are no array, so a model that computes with them fails at
    once. `dtype` is that of the keys that the model gave to the cache."""

    arrays: Arrays
    scheme: Scheme
    dtype: mx.Dtype
    spans: Spans = ()

    def astype(self, dtype: mx.Dtype) -> "PackedKV":
        """Returns itself, because attention computes in the dtype of its queries (stablelm converts
        queries and keys to float32)."""
        return self
