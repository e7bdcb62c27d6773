"""Divides the work of a tower into slices, so that other models hardly wait."""

from collections.abc import Iterable

import mlx.core as mx

from omlx_server.compute.hardware.device_policy import slice_products


class Slices:
    """Counts the blocks of a tower and ends a slice after every few."""

    def __init__(self, images: int, patches: int, hidden: int) -> None:
        """`patches` are those of each image, crop or frame, which see each other."""
        # Linear layers have 12 hidden^2 weights a block; scores and mixing, 2 patches a coordinate.
        block_products = images * patches * hidden * (12 * hidden + 2 * patches)
        self._blocks_a_slice = max(1, int(slice_products() / block_products))
        self._blocks = 0

    def end_after_block(self, arrays: Iterable[mx.array]) -> bool:
        """Count a block. If the slice ends with it, wait for `arrays` and return True."""
        self._blocks += 1
        if self._blocks % self._blocks_a_slice:
            return False
        mx.eval(list(arrays))
        return True
