"""The ways to hold keys and values that are compared, and one model with fresh caches of each."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.quantise import make_scheme, use_scheme

_GROUP_SIZE = 64
"""Of affine and rotated: the default of `kv_cache.group_size`."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A scheme and its bits, as they are configured."""

    scheme: str
    bits: float = 0

    @property
    def name(self) -> str:
        """Its key in the JSON file, and what the tables call it."""
        return f"{self.scheme} {self.bits:g}" if self.bits else self.scheme

    def make(self) -> Scheme | None:
        """None for plain caches."""
        return make_scheme(self.scheme, self.bits, _GROUP_SIZE)


PLAIN = Variant("none")
FOUR_BITS = tuple(Variant(scheme, 4) for scheme in ("affine", "rotated", "turboquant"))


class FreshCaches:
    """Empty caches of every variant for one model, which the last one is left installed in."""

    def __init__(self, loaded: LoadedModel, variants: Sequence[Variant]) -> None:
        """Raises ModelUnavailable when a variant does not fit the model."""
        # Plain ones first: no scheme is ever taken out of a model again.
        self._empty = {PLAIN: cache_ops.new_caches(loaded.model)}
        for variant in variants:
            scheme = variant.make()
            if scheme is not None:
                use_scheme(loaded.model, scheme)
                self._empty[variant] = cache_ops.new_caches(loaded.model)

    def of(self, variant: Variant) -> Caches:
        return copy.deepcopy(self._empty[variant])
