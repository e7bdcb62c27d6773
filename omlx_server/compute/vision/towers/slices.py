"""The work of a tower in slices, so that other models hardly wait."""

from collections.abc import Iterable

import mlx.core as mx

from omlx_server.compute.hardware.device_policy import slice_products


class Slices:
    """Says after which blocks of a tower a slice ends."""

    def __init__(self, images: int, patches: int, hidden: int) -> None:
        """For images, crops or frames of so many patches each, which see each other."""
        products = images * patches * hidden * (12 * hidden + 2 * patches)
        self._every = max(1, int(slice_products() / products))
        self._blocks = 0

    def over(self, arrays: Iterable[mx.array]) -> bool:
        """Count a block. At a slice's end, wait for `arrays`."""
        self._blocks += 1
        if self._blocks % self._every:
            return False
        mx.eval(list(arrays))
        return True
